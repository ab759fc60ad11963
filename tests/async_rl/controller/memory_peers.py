"""Queues in the place of sockets, for runs in one event loop."""

import asyncio
from dataclasses import dataclass

import msgspec

from async_rl.protocol import SCHEMA_VERSION, ControllerMessage, GeneratorMessage, Hello, PeerMessage, Role, Welcome


class MemoryPeers:
    """Queues in the place of the ROUTER."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[tuple[str, PeerMessage]] = asyncio.Queue()
        self.outboxes: dict[str, asyncio.Queue[ControllerMessage]] = {}

    async def receive(self) -> tuple[str, PeerMessage]:
        return await self.inbox.get()

    async def send(self, peer: str, message: ControllerMessage) -> bool:
        if peer not in self.outboxes:
            return False
        self.outboxes[peer].put_nowait(message)
        return True

    async def send_encoded(self, peer: str, frame: bytes) -> bool:
        return await self.send(peer, msgspec.msgpack.decode(frame, type=ControllerMessage))

    async def welcome(self, peer: str) -> bool:
        return await self.send(peer, Welcome(epoch="test"))

    def connect(self, role: Role, name: str, incarnation: str) -> "MemoryLink":
        """A peer's end, which has said hello."""
        self.outboxes[incarnation] = asyncio.Queue()
        hello = Hello(schema_version=SCHEMA_VERSION, role=role, name=name, incarnation=incarnation, pid=0, host="")
        self.inbox.put_nowait((incarnation, hello))
        self.outboxes[incarnation].put_nowait(Welcome(epoch="test"))
        return MemoryLink(self, incarnation)


@dataclass
class MemoryLink:
    """A peer's end; `copies` of each message are sent."""

    peers: MemoryPeers
    incarnation: str
    copies: int = 1

    async def send(self, message: GeneratorMessage) -> None:
        for _ in range(self.copies):
            self.peers.inbox.put_nowait((self.incarnation, message))

    async def receive(self) -> ControllerMessage:
        return await self.peers.outboxes[self.incarnation].get()
