"""A learner without a model: takes batches and commits them, as the real one would.

It says everything as often as its script tells, as a channel that repeats itself would.
"""

import asyncio
from dataclasses import dataclass

from async_rl.protocol import (
    Arrival,
    Batch,
    BatchRequest,
    CheckpointKept,
    CheckpointWritten,
    Commit,
    End,
    PeerMessage,
    Published,
    Role,
    StepMetrics,
    TrajectoryGroup,
    WeightManifest,
    Welcome,
)
from tests.async_rl.controller.memory_peers import MemoryPeers


@dataclass(frozen=True, kw_only=True)
class LearnerScript:
    """How a learner works."""

    step_s: float = 0.01
    checkpoint_every: int = 0
    write_steps: int = 0
    """So many steps later a checkpoint is whole."""
    publish_every: int = 1
    copies: int = 1
    """Of each message."""
    score_s: float | None = None
    """How long it scores a group on its arrival; None: it does not."""


def make_manifest(version: int) -> WeightManifest:
    """A version without tensors: scripted engines look at its number only."""
    return WeightManifest(
        version=version,
        transport="",
        location="",
        generation=version,
        tensors=[],
        num_bytes=0,
        gather_s=0,
        transfer_s=0,
    )


class ScriptedLearner:
    """One life of a learner."""

    def __init__(
        self, script: LearnerScript, peers: MemoryPeers, *, incarnation: str, version: int, steps: int
    ) -> None:
        self._script = script
        self._peers = peers
        self._incarnation = incarnation
        self._link = peers.connect(Role.LEARNER, "learner-0", incarnation)
        self._version = version
        self._steps = steps
        self._writing: list[int] = []
        """Checkpoints that are not whole yet, by version."""
        self.batches: list[Batch] = []
        self.scored: list[tuple[int, TrajectoryGroup]] = []
        """What it scored on arrival, and its version then."""

    async def run(self) -> None:
        """To the end, and its checkpoint."""
        assert isinstance(await self._link.receive(), Welcome)
        self._say(Published(manifest=make_manifest(self._version)))
        while isinstance(answer := await self._next_batch(), Batch):
            await self._train(answer)
        for version in [*self._writing, self._version]:
            await self._checkpoint(version)

    async def _train(self, batch: Batch) -> None:
        script = self._script
        self.batches.append(batch)
        await asyncio.sleep(script.step_s)
        self._version += 1
        every = script.checkpoint_every
        is_due = batch.checkpoint or bool(every and self._version % every == 0)
        metrics = StepMetrics(scalars={"learner/tokens": 1.0})
        self._say(Commit(version=self._version, metrics=metrics, checkpoint=is_due))
        if self._version % script.publish_every == 0 or self._version == self._steps:
            self._say(Published(manifest=make_manifest(self._version)))
        if is_due:
            self._writing.append(self._version)
        while self._writing and self._writing[0] + script.write_steps <= self._version:
            await self._checkpoint(self._writing.pop(0))

    async def _next_batch(self) -> Batch | End:
        num_arrivals = None if self._script.score_s is None else 0
        while True:
            self._say(BatchRequest(version=self._version, num_arrivals=num_arrivals))
            match await self._answer(num_arrivals):
                case End() | Batch() as answer:
                    return answer
                case Arrival(group=group):
                    assert self._script.score_s is not None and num_arrivals is not None, "nobody asked for it"
                    self.scored.append((self._version, group))
                    await asyncio.sleep(self._script.score_s)
                    num_arrivals += 1

    async def _answer(self, num_arrivals: int | None) -> Batch | Arrival | End:
        while True:
            match await self._link.receive():
                case End() as end:
                    return end
                case Batch() as batch if batch.version == self._version:
                    return batch
                case Arrival(version=version, number=number) as arrival:
                    if (version, number) == (self._version, num_arrivals):
                        return arrival

    async def _checkpoint(self, version: int) -> None:
        self._say(CheckpointWritten(version=version, folder="x"))
        while await self._link.receive() != CheckpointKept(version=version):
            pass

    def _say(self, message: PeerMessage) -> None:
        for _ in range(self._script.copies):
            self._peers.inbox.put_nowait((self._incarnation, message))
