"""Where a learner's batches come from and its versions go: the controller, seen through four verbs.

Owns the conversation with the controller. Knows no training: a test puts a list of batches in its place.
"""

import logging
import operator
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from async_rl.channel.peer_socket import BlockingPeerSocket
from async_rl.errors import ChannelError
from async_rl.protocol import (
    Arrival,
    Batch,
    BatchRequest,
    CheckpointKept,
    CheckpointWritten,
    Commit,
    ControllerMessage,
    End,
    PeerMessage,
    Published,
    Refused,
    StepMetrics,
    TrajectoryGroup,
    WeightManifest,
)

logger = logging.getLogger(__name__)

OnArrival = Callable[[TrajectoryGroup], None]
"""Scores a group under the learner's version, which sampled its newest tokens."""


class BatchSource(Protocol):
    """What the learner's loop needs of the world."""

    def next_batch(self, version: int, on_arrival: OnArrival | None = None) -> Batch | End:
        """Waits for the batch that takes the learner from `version` to `version + 1`, or for the end.

        Args:
            version: the learner's.
            on_arrival: called meanwhile with groups whose newest tokens `version` sampled and that may train in this
                batch or a later one: never twice with the same, and not once the batch is there. None: the learner only
                waits.
        """
        ...

    def commit(self, version: int, metrics: StepMetrics) -> None:
        """The learner now is `version`."""
        ...

    def publish(self, manifest: WeightManifest) -> None:
        """A version can be read."""
        ...

    def complete_checkpoint(self, version: int, folder: Path) -> None:
        """The learner's part lies in `folder`; returns once the checkpoint is whole."""
        ...


class ControllerBatchSource:
    """The `BatchSource` of a run.

    A message may be lost where a connection breaks, so what is waited for is asked for again, with the last commit
    before it; the controller passes over what it has heard already. Arrivals come one at a time, each for a number, so
    that never more than one stands before the batch: an answer to an old number is passed over.
    """

    def __init__(self, socket: BlockingPeerSocket, *, shard: int = 0, ask_again_s: float = 10.0) -> None:
        self._socket = socket
        self._shard = shard
        self._ask_again_s = ask_again_s
        self._last_commit: Commit | None = None

    def next_batch(self, version: int, on_arrival: OnArrival | None = None) -> Batch | End:
        """See `BatchSource`."""
        num_arrivals = None if on_arrival is None else 0
        while True:
            question = BatchRequest(version=version, shard=self._shard, num_arrivals=num_arrivals)
            self._socket.send(question)
            match self._answer(question, partial(_answers, question)):
                case End() | Batch() as answer:
                    return answer
                case Arrival(group=group):
                    assert group.newest_version == version, (group.key, group.newest_version, version)
                    assert on_arrival is not None and num_arrivals is not None
                    on_arrival(group)
                    num_arrivals += 1

    def commit(self, version: int, metrics: StepMetrics) -> None:
        """See `BatchSource`."""
        self._last_commit = Commit(version=version, metrics=metrics)
        self._socket.send(self._last_commit)

    def publish(self, manifest: WeightManifest) -> None:
        """See `BatchSource`."""
        self._socket.send(Published(manifest=manifest))

    def complete_checkpoint(self, version: int, folder: Path) -> None:
        """See `BatchSource`."""
        written = CheckpointWritten(version=version, folder=str(folder))
        self._socket.send(written)
        self._answer(written, partial(operator.eq, CheckpointKept(version=version)))

    def _answer(self, question: PeerMessage, fits: Callable[[ControllerMessage], bool]) -> ControllerMessage:
        """The next message that fits, since others answer a question that was put twice; until it comes, the question
        is put again and again."""
        while True:
            message = self._socket.receive(timeout_s=self._ask_again_s)
            if isinstance(message, Refused):
                raise ChannelError(f"the controller refused the learner: {message.reason}")
            if message is None:
                if self._last_commit is not None:
                    self._socket.send(self._last_commit)
                self._socket.send(question)
            elif fits(message):
                return message


def _answers(question: BatchRequest, said: ControllerMessage) -> bool:
    match said:
        case End():
            return True
        case Batch():
            return said.version == question.version
        case Arrival():
            return (said.version, said.number) == (question.version, question.num_arrivals)
        case _:
            return False
