"""A peer's end of the channel: a DEALER that says hello until it is welcome.

`PeerSocket` is for event loops (generators), `BlockingPeerSocket` for processes that compute in their one
thread (learner ranks). Both own the handshake and the size limit; what is to be sent again after a welcome
is the caller's business. A controller that was started again shows by the epoch of its welcome: an event
loop's peer says hello to it and goes on, a learner rank, whose batches it does not know, ends.
"""

import asyncio
import math
import time

import zmq
import zmq.asyncio

from async_rl.channel.codec import decode_controller_message, encode
from async_rl.errors import ChannelError
from async_rl.protocol import ControllerMessage, Hello, PeerMessage, Refused, Welcome

LINGER_MS = 2000
HELLO_INTERVAL_S = 1.0
SILENCE_S = 10.0
"""A blocking peer that waits says hello so often, to see whether the controller still is the same."""
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 30_000


def _configure(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, hello: Hello) -> None:
    socket.setsockopt(zmq.IDENTITY, hello.incarnation.encode())
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    # Unacked deliveries are kept by their sender, so nothing is won by dropping here.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    # A connection that a network has silently dropped is made again, not waited on.
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)


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
        self._epoch = ""

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
        self._epoch = self._greeting.epoch

    async def send(self, message: PeerMessage) -> None:
        """Hands a message over; it may be lost if the controller dies.

        Raises:
            ChannelError: the message is larger than the controller takes.
        """
        await self._socket.send(_check_size(encode(message), message, self._max_message_bytes))

    async def receive(self) -> ControllerMessage:
        """The next message. After a `Welcome`, whatever is not acked is to be sent again.

        A cancelled call may lose a message.
        """
        if self._greeting is not None:
            greeting, self._greeting = self._greeting, None
            return greeting
        message = decode_controller_message(await self._socket.recv())
        if isinstance(message, Welcome) and message.epoch != self._epoch:
            self._epoch = message.epoch
            await self.send(self._hello)
        return message

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
        self._epoch = ""

    def connect(self, timeout_s: float) -> None:
        """Says hello until it is welcome.

        Raises:
            ChannelError: nobody answered in time, or the controller refused.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            self.send(self._hello)
            if self._socket.poll(int(1000 * HELLO_INTERVAL_S)):
                greeting = _check_greeting(decode_controller_message(self._socket.recv()), self._address)
                self._epoch = greeting.epoch
                return
        raise _no_answer(self._address, timeout_s)

    def send(self, message: PeerMessage) -> None:
        """Hands a message over.

        Raises:
            ChannelError: the message is larger than the controller takes.
        """
        self._socket.send(_check_size(encode(message), message, self._max_message_bytes))

    def receive(self, timeout_s: float | None = None) -> ControllerMessage | None:
        """The next message; None if none came in time. Welcomes are passed over.

        Raises:
            ChannelError: the controller was started again.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            wait_s = min(max(deadline_s - time.monotonic(), 0.0), SILENCE_S)
            if not self._socket.poll(math.ceil(1000 * wait_s)):
                if time.monotonic() >= deadline_s:
                    return None
                self.send(self._hello)
                continue
            message = decode_controller_message(self._socket.recv())
            if not isinstance(message, Welcome):
                return message
            if message.epoch != self._epoch:
                raise ChannelError(
                    f"the controller at {self._address} was started again: this process is not of its run"
                )

    def close(self) -> None:
        """Sends what is queued, for at most two seconds."""
        self._socket.close()
        self._context.term()
