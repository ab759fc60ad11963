"""A peer's end of the channel: a DEALER that says hello until it is welcome.

`PeerSocket` is for event loops (generators), `BlockingPeerSocket` for processes that compute in their one
thread (learner ranks). Both own the handshake and the size limit; what is to be sent again after a welcome
is the caller's business.
"""

import asyncio
import time

import zmq
import zmq.asyncio

from async_rl.channel.codec import decode_controller_message, encode
from async_rl.errors import ChannelError
from async_rl.protocol import ControllerMessage, Hello, PeerMessage, Refused, Welcome

LINGER_MS = 2000
HELLO_INTERVAL_S = 1.0


def _configure(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, hello: Hello) -> None:
    socket.setsockopt(zmq.IDENTITY, hello.incarnation.encode())
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    # Unacked deliveries are kept by their sender, so nothing is won by dropping here.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)


def _check_size(frame: bytes, message: PeerMessage, limit: int) -> bytes:
    if len(frame) > limit:
        raise ChannelError(
            f"{type(message).__name__} of {len(frame)} bytes is over channel.max_message_mib={limit >> 20}: raise it"
        )
    return frame


def _check_greeting(message: ControllerMessage, address: str) -> Welcome:
    if isinstance(message, Refused):
        raise ChannelError(f"the controller at {address} refused us: {message.reason}")
    if not isinstance(message, Welcome):
        raise ChannelError(f"the controller at {address} answered a hello with {type(message).__name__}")
    return message


def _no_answer(address: str, timeout_s: float) -> ChannelError:
    return ChannelError(f"no controller answered at {address} within {timeout_s:g} s")


class PeerSocket:
    """Messages both ways, in an event loop."""

    def __init__(self, address: str, hello: Hello, *, max_message_bytes: int) -> None:
        self._address = address
        self._hello = hello
        self._max_message_bytes = max_message_bytes
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _configure(self._socket, hello)
        self._socket.connect(address)
        self._greeting: Welcome | None = None

    async def connect(self, timeout_s: float) -> None:
        """Says hello until it is welcome; that `Welcome` is also the first message of `receive`.

        Raises:
            ChannelError: nobody answered in time, or the controller refused.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self.send(self._hello)
                    if await self._socket.poll(int(1000 * HELLO_INTERVAL_S)):
                        break
        except TimeoutError:
            raise _no_answer(self._address, timeout_s) from None
        self._greeting = _check_greeting(decode_controller_message(await self._socket.recv()), self._address)

    async def send(self, message: PeerMessage) -> None:
        """Hands a message over; it may be lost if the controller dies.

        Raises:
            ChannelError: the message is larger than the controller takes.
        """
        await self._socket.send(_check_size(encode(message), message, self._max_message_bytes))

    async def receive(self) -> ControllerMessage:
        """The next message."""
        if self._greeting is not None:
            greeting, self._greeting = self._greeting, None
            return greeting
        return decode_controller_message(await self._socket.recv())

    def close(self) -> None:
        """Sends what is queued, for at most two seconds."""
        self._socket.close()
        self._context.term()


class BlockingPeerSocket:
    """Messages both ways, for a thread that has nothing else to do meanwhile."""

    def __init__(self, address: str, hello: Hello, *, max_message_bytes: int) -> None:
        self._address = address
        self._hello = hello
        self._max_message_bytes = max_message_bytes
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _configure(self._socket, hello)
        self._socket.connect(address)

    def connect(self, timeout_s: float) -> None:
        """Says hello until it is welcome.

        Raises:
            ChannelError: nobody answered in time, or the controller refused.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            self.send(self._hello)
            if self._socket.poll(int(1000 * HELLO_INTERVAL_S)):
                _check_greeting(decode_controller_message(self._socket.recv()), self._address)
                return
        raise _no_answer(self._address, timeout_s)

    def send(self, message: PeerMessage) -> None:
        """Hands a message over.

        Raises:
            ChannelError: the message is larger than the controller takes.
        """
        self._socket.send(_check_size(encode(message), message, self._max_message_bytes))

    def receive(self, timeout_s: float | None = None) -> ControllerMessage | None:
        """The next message; None if none came in time. Welcomes after the first are passed over."""
        while True:
            if timeout_s is not None and not self._socket.poll(int(1000 * timeout_s)):
                return None
            message = decode_controller_message(self._socket.recv())
            if not isinstance(message, Welcome):
                return message

    def close(self) -> None:
        """Sends what is queued, for at most two seconds."""
        self._socket.close()
        self._context.term()
