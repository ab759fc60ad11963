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
    """The `BatchSource` of a run."""

    def __init__(self, socket: BlockingPeerSocket) -> None:
        self._socket = socket

    def next_batch(self, version: int) -> Batch | End:
        """See `BatchSource`."""
        self._socket.send(BatchRequest(version=version))
        answer = self._receive()
        if isinstance(answer, End):
            return answer
        assert isinstance(answer, Batch) and answer.version == version, (type(answer), version)
        return answer

    def commit(self, version: int, metrics: StepMetrics) -> None:
        """See `BatchSource`."""
        self._socket.send(Commit(version=version, metrics=metrics))

    def publish(self, manifest: WeightManifest) -> None:
        """See `BatchSource`."""
        self._socket.send(Published(manifest=manifest))

    def complete_checkpoint(self, version: int, folder: Path) -> None:
        """See `BatchSource`."""
        self._socket.send(CheckpointWritten(version=version, folder=str(folder)))
        answer = self._receive()
        assert answer == CheckpointKept(version=version), answer

    def _receive(self) -> ControllerMessage:
        message = self._socket.receive()
        assert message is not None
        if isinstance(message, Refused):
            raise ChannelError(f"the controller refused the learner: {message.reason}")
        return message
