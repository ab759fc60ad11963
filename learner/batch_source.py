"""Where a learner's batches come from and its versions go: the controller, seen through four verbs.

Owns the conversation with the controller. Knows no training: a test puts a list of batches in its place.
"""

import logging
import operator
import queue
import time
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
from learner.checkpoint_writer import WriteTimes

logger = logging.getLogger(__name__)

NEWS_S = 1.0
"""So soon the controller hears of a checkpoint that became whole while the learner waits."""

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

    def commit(self, version: int, metrics: StepMetrics, *, checkpoint: bool = False) -> None:
        """The learner now is `version`, and begins a checkpoint of it or not."""
        ...

    def publish(self, manifest: WeightManifest) -> None:
        """A version can be read."""
        ...

    def complete_checkpoint(self, version: int, folder: Path, times: WriteTimes) -> None:
        """The learner's part lies in `folder`. May be called from any thread."""
        ...

    def await_checkpoint(self) -> None:
        """Returns once the last one that `complete_checkpoint` told of is whole."""
        ...


class ControllerBatchSource:
    """The `BatchSource` of a run.

    A message may be lost where a connection breaks, so what is waited for is asked for again, with the last commit
    before it; the controller passes over what it has heard already. Arrivals come one at a time, each for a number, so
    that never more than one stands before the batch: an answer to an old number is passed over. That a checkpoint is
    whole is said and heard between other things.
    """

    def __init__(self, socket: BlockingPeerSocket, *, shard: int = 0, ask_again_s: float = 10.0) -> None:
        self._socket = socket
        self._shard = shard
        self._ask_again_s = ask_again_s
        self._last_commit: Commit | None = None
        self._written: queue.SimpleQueue[CheckpointWritten] = queue.SimpleQueue()
        """Not said yet."""
        self._unkept: CheckpointWritten | None = None
        """Said, and not answered yet."""

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

    def commit(self, version: int, metrics: StepMetrics, *, checkpoint: bool = False) -> None:
        """See `BatchSource`."""
        self._last_commit = Commit(version=version, metrics=metrics, checkpoint=checkpoint)
        self._socket.send(self._last_commit)

    def publish(self, manifest: WeightManifest) -> None:
        """See `BatchSource`."""
        self._socket.send(Published(manifest=manifest))

    def complete_checkpoint(self, version: int, folder: Path, times: WriteTimes) -> None:
        """See `BatchSource`."""
        self._written.put(
            CheckpointWritten(version=version, folder=str(folder), stood_s=times.stood_s, write_s=times.write_s)
        )

    def await_checkpoint(self) -> None:
        """See `BatchSource`."""
        self._say_written()
        if self._unkept is not None:
            self._answer(self._unkept, partial(operator.eq, CheckpointKept(version=self._unkept.version)))

    def _say_written(self) -> None:
        while not self._written.empty():
            self._unkept = self._written.get()
            self._socket.send(self._unkept)

    def _answer(self, question: PeerMessage, fits: Callable[[ControllerMessage], bool]) -> ControllerMessage:
        """The next message that fits, since others answer a question that was put twice; until it comes, the question
        is put again and again."""
        asked_s = time.monotonic()
        while True:
            self._say_written()
            message = self._socket.receive(timeout_s=min(NEWS_S, self._ask_again_s))
            if isinstance(message, Refused):
                raise ChannelError(f"the controller refused the learner: {message.reason}")
            if self._unkept is not None and message == CheckpointKept(version=self._unkept.version):
                self._unkept = None
            if message is not None and fits(message):
                return message
            if time.monotonic() - asked_s >= self._ask_again_s:
                asked_s = time.monotonic()
                for lost in (self._last_commit, self._unkept, question):
                    if lost is not None:
                        self._socket.send(lost)


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
