"""Where a learner's batches come from and its versions go: the controller, seen through four verbs.

Owns the conversation with the controller. Knows no training: a test puts a list of batches in its place.
"""

import logging
from pathlib import Path
from typing import Protocol

from async_rl.channel.peer_socket import BlockingPeerSocket
from async_rl.errors import ChannelError
from async_rl.protocol import (
    Batch,
    BatchRequest,
    CheckpointKept,
    CheckpointWritten,
    Commit,
    ControllerMessage,
    End,
    Published,
    Refused,
    StepMetrics,
    WeightManifest,
)

logger = logging.getLogger(__name__)


class BatchSource(Protocol):
    """What the learner's loop needs of the world."""

    def next_batch(self, version: int) -> Batch | End:
        """Waits for the batch that takes the learner from `version` to `version + 1`, or for the end."""
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
    before it; the controller passes over what it has heard already.
    """

    def __init__(self, socket: BlockingPeerSocket, *, ask_again_s: float = 10.0) -> None:
        self._socket = socket
        self._ask_again_s = ask_again_s
        self._last_commit: Commit | None = None

    def next_batch(self, version: int) -> Batch | End:
        """See `BatchSource`."""
        request = BatchRequest(version=version)
        while True:
            answer = self._ask(request)
            # Anything else is an answer to a request that was answered twice.
            if isinstance(answer, End) or (isinstance(answer, Batch) and answer.version == version):
                return answer

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
        while self._ask(written) != CheckpointKept(version=version):
            pass

    def _ask(self, question: BatchRequest | CheckpointWritten) -> ControllerMessage:
        self._socket.send(question)
        while True:
            message = self._socket.receive(timeout_s=self._ask_again_s)
            if isinstance(message, Refused):
                raise ChannelError(f"the controller refused the learner: {message.reason}")
            if message is not None:
                return message
            if self._last_commit is not None:
                self._socket.send(self._last_commit)
            self._socket.send(question)
