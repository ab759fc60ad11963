"""What a generator asks of its connection to the controller.

Owns the seam. Knows nothing of sockets; the channel package has the real one, tests use queues.
"""

from typing import Protocol

from async_rl.protocol import ControllerMessage, GeneratorMessage


class ControllerLink(Protocol):
    """Ordered messages both ways. Hello and reconnecting are the link's own business."""

    async def send(self, message: GeneratorMessage) -> None:
        """Hands over a message; it may be lost if the controller dies, so what must arrive is sent until its ack.

        Raises `ChannelError` for a message that is larger than the controller takes.
        """
        ...

    async def receive(self) -> ControllerMessage:
        """The next message. A `Welcome` comes first, and again after every reconnection."""
        ...
