"""The controller's end of the channel: a ROUTER that takes in peers and their messages.

Owns who has said a valid hello, and the refusal of everything else: a frame that is no message is counted
and logged with its sender, and changes nothing. So is a message that is not for the sender's role to say. A
peer's identity is its incarnation, so an old life and a new one are never mixed up.

Never waits for a peer: what does not fit into a slow peer's queue is not sent, and the caller is told. Frames
of peers are limited to `max_message_bytes`: a larger one closes its connection (peers of ours do not send it).
Frames to peers, batches above all, may be of any size.
"""

import asyncio
import logging
import time
from collections import Counter
from typing import get_args

import zmq
import zmq.asyncio

from async_rl.channel.codec import decode_peer_message, encode, schema_version_of
from async_rl.channel.refusals import Refusals
from async_rl.errors import ChannelError, ResourceError
from async_rl.protocol import (
    SCHEMA_VERSION,
    ControllerMessage,
    GeneratorMessage,
    Hello,
    LearnerMessage,
    PeerMessage,
    Refused,
    Role,
    Welcome,
)

logger = logging.getLogger(__name__)

LINGER_MS = 2000

_MESSAGES_OF: dict[Role, tuple[type[PeerMessage], ...]] = {
    Role.GENERATOR: get_args(GeneratorMessage),
    Role.LEARNER: get_args(LearnerMessage),
}


class ControllerSocket:
    """Binds at once; see `async_rl.controller.ports.Peers` for the rest."""

    def __init__(self, host: str, port: int, *, max_message_bytes: int, epoch: str) -> None:
        self._epoch = epoch
        self._roles: dict[str, Role] = {}
        """Who has said hello, and as what."""
        self._refusals = Refusals()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._bind(host, port)

    def _bind(self, host: str, port: int) -> None:
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise ResourceError(
                f"cannot bind {host}:{port}: {error.strerror}",
                place="channel.host, channel.port",
                remedy="choose another port (channel.port=0 takes a free one); the host has to be an address "
                "of this machine, in numbers",
            ) from error
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = f"tcp://{host}:{bound.rsplit(':', 1)[1]}"

    @property
    def refusals(self) -> Counter[str]:
        """Frames refused, by sender."""
        return self._refusals.by_sender

    async def receive(self) -> tuple[str, PeerMessage]:
        """(incarnation, message) of a peer that has said hello; its `Hello` comes first.

        A cancelled call may lose a message.
        """
        while True:
            # Where frames arrive faster than they are handled, receiving never waits: others need their turn too.
            await asyncio.sleep(0)
            identity, *payload = await self._socket.recv_multipart()
            peer = identity.decode("utf-8", errors="backslashreplace")
            frame = b"".join(payload)
            try:
                if len(payload) != 1:
                    raise ChannelError(f"a message of {len(payload)} frames")
                message = decode_peer_message(frame)
            except ChannelError as error:
                await self._refuse(peer, str(error), schema=schema_version_of(frame))
                continue
            if await (self._admit(peer, message) if isinstance(message, Hello) else self._allow(peer, message)):
                return peer, message

    async def _admit(self, peer: str, hello: Hello) -> bool:
        if hello.schema_version != SCHEMA_VERSION:
            await self._refuse(peer, "a hello", schema=hello.schema_version)
            return False
        if hello.incarnation != peer:
            await self._refuse(peer, f"a hello in the name of {hello.incarnation!r}")
            return False
        self._roles[peer] = hello.role
        return await self.welcome(peer)

    async def _allow(self, peer: str, message: PeerMessage) -> bool:
        role = self._roles.get(peer)
        if role is None:
            await self._refuse(peer, f"{type(message).__name__} before any hello")
            # It may have been welcome in a former life of this controller: another epoch makes it say hello.
            await self.welcome(peer)
            return False
        if not isinstance(message, _MESSAGES_OF[role]):
            await self._refuse(peer, f"{type(message).__name__} is not for a {role} to say")
            return False
        return True

    async def _refuse(self, peer: str, problem: str, *, schema: int | None = None) -> None:
        line = self._refusals.count(peer, problem, time.monotonic())
        if line is not None:
            logger.warning(line)
        if schema is not None and schema != SCHEMA_VERSION:
            reason = f"it speaks schema {schema}, the controller {SCHEMA_VERSION}: install the same async-rl on both"
            await self.send(peer, Refused(reason=reason))

    async def welcome(self, peer: str) -> bool:
        """Greets a peer, which then says again whatever is not acked."""
        return await self.send(peer, Welcome(epoch=self._epoch))

    async def send(self, peer: str, message: ControllerMessage) -> bool:
        """False where the peer is gone, or too slow to take any more."""
        return await self.send_encoded(peer, encode(message))

    async def send_encoded(self, peer: str, frame: bytes) -> bool:
        """The same, for a frame that several peers get."""
        try:
            await self._socket.send_multipart([peer.encode(), frame], flags=zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            logger.info("%s was not sent %d bytes: %s", peer, len(frame), error)
            return False
        return True

    def close(self) -> None:
        """Sends what is queued, for at most two seconds."""
        self._socket.close()
        self._context.term()
