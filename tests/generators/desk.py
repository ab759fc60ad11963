"""The controller's side of a link, for tests: says things to a generator and reads what it answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from async_rl.config.reward import RewardConfig
from async_rl.errors import ChannelError
from async_rl.protocol import (
    Ack,
    ControllerMessage,
    Delivery,
    End,
    GeneratorMessage,
    Grant,
    Lease,
    Message,
    Prompt,
    Published,
    Purpose,
    Sampling,
    WeightManifest,
    Welcome,
)
from generators.engine import Engine
from generators.generator import Generator
from generators.reward import RewardRunner
from generators.reward_reader import RewardReader

GROUP_SIZE = 2
M = TypeVar("M", bound=Message)


@dataclass
class Desk:
    """A `ControllerLink` whose other end the test holds."""

    inbox: asyncio.Queue[ControllerMessage] = field(default_factory=asyncio.Queue)
    sent: list[GeneratorMessage] = field(default_factory=list)
    """All that the generator has said."""
    said: asyncio.Condition = field(default_factory=asyncio.Condition)
    too_large: int | None = None
    """The group whose delivery is larger than the controller takes."""

    async def send(self, message: GeneratorMessage) -> None:
        if isinstance(message, Delivery) and message.group.group_id == self.too_large:
            raise ChannelError("Delivery of 99 bytes is over channel.max_message_mib: raise it")
        async with self.said:
            self.sent.append(message)
            self.said.notify_all()

    async def receive(self) -> ControllerMessage:
        return await self.inbox.get()

    def tell(self, message: ControllerMessage) -> None:
        """Says something to the generator."""
        self.inbox.put_nowait(message)

    def grant(self, *group_ids: int, attempt: int = 0, **changes: object) -> None:
        """Leases groups."""
        self.tell(Grant(leases=[make_lease(group_id, attempt=attempt, **changes) for group_id in group_ids]))

    def acknowledge(self, delivery: Delivery) -> None:
        """Says that a delivery is durable."""
        group = delivery.group
        self.tell(Ack(purpose=delivery.purpose, group_id=group.group_id, attempt=group.attempt))

    def of(self, kind: type[M]) -> list[M]:
        """What was said of one kind."""
        return [message for message in self.sent if isinstance(message, kind)]

    async def next(self, kind: type[M], *, after: int) -> M:
        """The message of a kind that follows `after` others of it."""
        async with asyncio.timeout(10), self.said:
            await self.said.wait_for(lambda: len(self.of(kind)) > after)
        return self.of(kind)[after]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what no message tells."""
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)


def make_lease(group_id: int, *, attempt: int = 0, **changes: object) -> Lease:
    """A lease of `GROUP_SIZE` samples."""
    fields: dict[str, object] = {
        "purpose": Purpose.TRAIN,
        "prompt": Prompt(prompt_id=group_id, text=str(group_id), token_ids=[group_id], answer="", task="sums"),
        "group_size": GROUP_SIZE,
        "sampling": Sampling(max_tokens=16),
        "timeout_s": 30.0,
    }
    return Lease(group_id=group_id, attempt=attempt, **{**fields, **changes})  # type: ignore[arg-type]


def make_published(version: int, *, generation: int | None = None, history: int = 0) -> Published:
    """A version without tensors, as a scripted engine takes it."""
    return Published(
        history=history,
        manifest=WeightManifest(
            version=version,
            transport="",
            location="",
            generation=version if generation is None else generation,
            tensors=[],
            num_bytes=0,
            gather_s=0.0,
            transfer_s=0.0,
        ),
    )


@asynccontextmanager
async def generator(
    engine: Engine,
    *,
    reward: str,
    requests_per_group: int = GROUP_SIZE,
    max_concurrent: int = 8,
    max_retries: int = 2,
    heartbeat_s: float = 60.0,
    timeout_s: float = 0.2,
    reader: RewardReader | None = None,
) -> AsyncIterator[tuple[Desk, asyncio.Task[None]]]:
    """A running generator that has been welcomed; it is told to end, and must, unless it has."""
    desk = Desk()
    config = RewardConfig(function=reward, timeout_s=timeout_s)
    rewards = RewardRunner(config, reader or RewardReader(), lambda token_ids: " ".join(map(str, token_ids)))
    await engine.start()
    life = Generator(
        engine=engine,
        rewards=rewards,
        link=desk,
        incarnation="generator-0-a",
        requests_per_group=requests_per_group,
        max_concurrent=max_concurrent,
        max_retries=max_retries,
        heartbeat_s=heartbeat_s,
    )
    task = asyncio.create_task(life.run())
    desk.tell(Welcome(epoch="1"))
    try:
        yield desk, task
        desk.tell(End(reason="the test is over", checkpoint=False))
        async with asyncio.timeout(5):
            await asyncio.wait([task])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        rewards.close()
        await engine.close()
