"""A whole run in one event loop: the real controller and real generators, scripted engines, queues for sockets.

What reaches the learner is recorded for the tests.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from async_rl.checkpoints import LoopState
from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import LearnerConfig
from async_rl.config.loop import LedgerConfig
from async_rl.config.reward import RewardConfig
from async_rl.config.schema import RunConfig
from async_rl.config.staleness import OverBound, StalenessConfig
from async_rl.controller.controller import Controller
from async_rl.controller.dealer import Dealer
from async_rl.controller.roster import Roster
from async_rl.coordinator import Coordinator
from async_rl.evaluation import EvaluationResult
from async_rl.history import mirror_versions
from async_rl.ledger import Counts
from async_rl.protocol import (
    Activation,
    Batch,
    GeneratorStats,
    Prompt,
    Role,
    StepMetrics,
    TrajectoryGroup,
    WeightManifest,
)
from async_rl.sizing.flops import ModelFlops
from async_rl.staleness import StalenessGate
from async_rl.totals import GeneratorTotals
from generators.generator import Generator
from generators.reward import RewardRunner
from generators.reward_reader import RewardReader
from generators.scripted_engine import ScriptedEngine
from tests.async_rl.controller.memory_peers import MemoryPeers
from tests.async_rl.controller.scripted_learner import LearnerScript, ScriptedLearner

NUM_PROMPTS = 1000
ORDINARY = LearnerScript()
FLOPS = ModelFlops(per_token=100, per_scored_token=10, per_pair=1)


async def reward(prompt: str, response: str, answer: str, metadata: dict[str, object]) -> float:
    """Depends on the response, so that groups differ."""
    return float(len(response) % 2)


def make_config(
    *, maximum: int = 2, depth: int = 1, steps: int = 6, over_bound: OverBound = OverBound.wait
) -> RunConfig:
    """A small run."""
    return RunConfig(
        steps=steps,
        staleness=StalenessConfig(max=maximum, depth=depth, over_bound=over_bound),
        generation=GenerationConfig(group_size=2, max_new_tokens=12, max_concurrent=12),
        learner=LearnerConfig(groups_per_step=4),
        ledger=LedgerConfig(lease_timeout_s=5.0),
        reward=RewardConfig(function=f"{__name__}:reward"),
    )


@dataclass
class MemoryJournal:
    """What a journal keeps."""

    groups: dict[int, TrajectoryGroup] = field(default_factory=dict)

    def append(self, group: TrajectoryGroup) -> None:
        self.groups[group.group_id] = group

    def remove(self, group_ids: Iterable[int]) -> None:
        for group_id in group_ids:
            self.groups.pop(group_id, None)

    def load(self, version: int) -> list[TrajectoryGroup]:
        self.groups = {i: mirror_versions(group, version) for i, group in sorted(self.groups.items())}
        return list(self.groups.values())


@dataclass
class MemoryCheckpoints:
    """Keeps the loop's states."""

    states: list[LoopState] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)
    spared: list[list[int]] = field(default_factory=list)

    def complete(
        self, written: Path, state: LoopState, *, score: float | None = None, spared: Collection[int] = ()
    ) -> Path:
        self.states.append(state)
        self.spared.append(list(spared))
        if score is not None:
            self.score(state.version, score)
        return written

    def score(self, version: int, score: float) -> None:
        self.scores[version] = score

    def versions(self) -> list[int]:
        return [state.version for state in self.states]

    def pass_over(self, checkpoint: Path) -> Path | None:
        if len(self.states) < 2:
            return None
        self.states.pop()
        return checkpoint

    def last(self) -> tuple[Path, LoopState] | None:
        return (Path("x"), self.states[-1]) if self.states else None

    def remove_unfinished(self) -> None: ...


class CountingPrompts:
    """Group n has prompt n."""

    def prompt(self, group_id: int) -> Prompt:
        index = group_id % NUM_PROMPTS
        return Prompt(prompt_id=index, text=str(index), token_ids=[index], answer="")


@dataclass
class Notes:
    """An observer that remembers."""

    messages: list[str] = field(default_factory=list)
    results: list[EvaluationResult] = field(default_factory=list)
    totals: GeneratorTotals = field(default_factory=GeneratorTotals)
    is_training: bool = False
    counts: list[Counts] = field(default_factory=list)
    rolled_back_to: list[int] = field(default_factory=list)
    run_hash: str | None = None

    def trained(self, version: int, groups: Sequence[TrajectoryGroup]) -> None: ...
    def stepped(self, version: int, metrics: StepMetrics, now_s: float) -> None: ...
    def published(self, manifest: WeightManifest, now_s: float) -> None: ...
    def activated(self, name: str, activation: Activation, now_s: float) -> None: ...
    def checkpoint_begun(self, version: int) -> None: ...
    def checkpointed(self, folder: Path, version: int, *, stood_s: float, write_s: float) -> None: ...

    def training_began(self, now_s: float) -> None:
        self.is_training = True

    def training_ended(self, now_s: float) -> None:
        self.is_training = False

    def reported(self, name: str, stats: GeneratorStats, now_s: float) -> None:
        self.totals.report(name, stats, counts=self.is_training)

    def evaluated(self, result: EvaluationResult) -> None:
        self.results.append(result)

    def rolled_back(self, version: int, *, trained_tokens: int, is_training: bool) -> None:
        self.rolled_back_to.append(version)
        self.is_training = is_training

    def said(self, message: str) -> None:
        self.messages.append(message)

    def tick(self, *, version: int, phase: str, counts: Counts, roster: Roster, now_s: float) -> None:
        self.counts.append(counts)


class World:
    """Controller, generators and learner of one run, and what happened in it."""

    def __init__(
        self, config: RunConfig, *, state: LoopState | None = None, journal: MemoryJournal | None = None
    ) -> None:
        self.config = config
        self.peers = MemoryPeers()
        self.journal = journal or MemoryJournal()
        self.checkpoints = MemoryCheckpoints()
        self.notes = Notes()
        self.batches: list[Batch] = []
        self.scored: list[tuple[int, TrajectoryGroup]] = []
        """What the learner scored on arrival, and its version then."""
        self.learner_lives: list[asyncio.Task[None]] = []
        self.is_newest_damaged = False
        """As the learner's next life finds out."""
        self.heartbeat_s = 0.05
        self.max_retries = 0
        self.generators: dict[str, asyncio.Task[None]] = {}
        self.engines: dict[str, ScriptedEngine] = {}
        gate = StalenessGate(
            max=config.staleness.max,
            depth=config.staleness.depth,
            groups_per_step=config.learner.groups_per_step,
            steps=config.steps,
        )
        over_bound, attempts = config.staleness.over_bound, config.ledger.max_attempts
        if state is None:
            coordinator = Coordinator.create(gate, over_bound, max_attempts=attempts)
        else:
            coordinator = Coordinator.restore(
                gate,
                over_bound,
                max_attempts=attempts,
                version=state.version,
                snapshot=state.ledger,
                journal=self.journal.load(state.version),
            )
        self.controller = Controller(
            config,
            coordinator=coordinator,
            dealer=Dealer.of(config, FLOPS),
            peers=self.peers,
            journal=self.journal,
            checkpoints=self.checkpoints,
            prompts=CountingPrompts(),
            held_out=[Prompt(prompt_id=i, text="", token_ids=[i], answer="") for i in range(3)],
            observer=self.notes,
            clock=time.monotonic,
        )

    def start_generator(self, name: str, incarnation: str, engine: ScriptedEngine, *, copies: int = 1) -> None:
        """A generator begins a life."""
        self.engines[incarnation] = engine
        self.generators[incarnation] = asyncio.create_task(self._generate(name, incarnation, engine, copies))

    async def _generate(self, name: str, incarnation: str, engine: ScriptedEngine, copies: int) -> None:
        await engine.start()
        link = replace(self.peers.connect(Role.GENERATOR, name, incarnation), copies=copies)
        await Generator(
            engine=engine,
            rewards=RewardRunner(
                self.config.reward, RewardReader.of(self.config.advantage), lambda ids: "x" * sum(ids)
            ),
            link=link,
            incarnation=incarnation,
            requests_per_group=self.config.generation.group_size + self.config.advantage.takes_greedy_baseline,
            max_concurrent=self.config.generation.max_concurrent,
            max_retries=self.max_retries,
            heartbeat_s=self.heartbeat_s,
        ).run()

    def kill_generator(self, incarnation: str) -> None:
        """Ends a life without a word."""
        self.generators.pop(incarnation).cancel()
        del self.peers.outboxes[incarnation]

    async def _learn(self, script: LearnerScript) -> None:
        """Life after life, as a supervisor keeps it."""
        before: list[Batch] = []
        while True:
            incarnation = f"learner-0-{len(self.learner_lives)}"
            self.controller.learner_begins(frozenset({incarnation}))
            learner = ScriptedLearner(
                script,
                self.peers,
                incarnation=incarnation,
                version=self.controller.coordinator.version,
                steps=self.config.steps,
            )
            learner.batches[:] = before
            self.batches, self.scored = learner.batches, learner.scored
            self.learner_lives.append(asyncio.create_task(learner.run()))
            await asyncio.wait(self.learner_lives[-1:])
            if not self.learner_lives[-1].cancelled():
                self.learner_lives[-1].result()
                self.controller.learner_left()
                return
            folder = await self.controller.roll_back()
            if self.is_newest_damaged and folder is not None:
                self.is_newest_damaged = False
                assert await self.controller.pass_over(folder) is not None
            before = [batch for batch in self.batches if batch.version < self.controller.coordinator.version]

    def kill_learner(self) -> None:
        """Ends its life without a word; it begins another."""
        self.learner_lives[-1].cancel()

    async def run(self, learner: LearnerScript = ORDINARY) -> None:
        """Runs to the end."""
        learner_task = asyncio.create_task(self._learn(learner))
        try:
            async with asyncio.timeout(20.0):
                await self.controller.run()
        finally:
            tasks = [learner_task, *self.learner_lives, *self.generators.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def trained_ids(self) -> list[int]:
        """Group ids in the order in which they trained."""
        return [g.group_id for batch in self.batches for g in batch.outline]

    @property
    def staleness(self) -> list[int]:
        """Of every trained token."""
        return [
            batch.version - int(v)
            for batch in self.batches
            for part in batch.parts
            for t in part.trajectories
            for v in t.weight_versions
        ]
