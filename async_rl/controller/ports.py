"""What the controller asks of the world around it, and nothing more.

Owns the seams. The channel, the journal, the checkpoints and the telemetry stand behind them in a run;
tests of the loop's logic put plain objects there.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from async_rl.checkpoints import LoopState
from async_rl.controller.roster import Roster
from async_rl.evaluation import EvaluationResult
from async_rl.ledger import Counts
from async_rl.protocol import (
    Activation,
    ControllerMessage,
    GeneratorStats,
    PeerMessage,
    Prompt,
    StepMetrics,
    TrajectoryGroup,
    WeightManifest,
)


class Peers(Protocol):
    """The channel's end: messages of peers that said hello, in order for each of them."""

    async def receive(self) -> tuple[str, PeerMessage]:
        """(identity of the sender, its message); a `Hello` comes first for each identity."""
        ...

    async def send(self, peer: str, message: ControllerMessage) -> bool:
        """False where the peer is gone."""
        ...

    async def welcome(self, peer: str) -> bool:
        """Greets a peer again: it says hello anew, and everything that is not acked."""
        ...

    async def send_encoded(self, peer: str, frame: bytes) -> bool:
        """The same, for a frame that several peers get."""
        ...


class GroupJournal(Protocol):
    """Delivered groups, durable until a checkpoint covers them."""

    def append(self, group: TrajectoryGroup) -> None: ...

    def remove(self, group_ids: Iterable[int]) -> None: ...

    def load(self, version: int) -> list[TrajectoryGroup]:
        """All that it has, restated for a history that goes on from `version`."""
        ...


class CheckpointStore(Protocol):
    """Completes what the learner wrote, and knows where a run goes back to."""

    def complete(
        self, written: Path, state: LoopState, *, score: float | None = None, spared: Collection[int] = ()
    ) -> Path: ...

    def score(self, version: int, score: float) -> None:
        """How good the model of a complete one is; more is better."""
        ...

    def versions(self) -> list[int]:
        """Of complete ones."""
        ...

    def pass_over(self, checkpoint: Path) -> Path | None:
        """Sets a damaged one aside; None, and nothing changes, where there is no older one."""
        ...

    def last(self) -> tuple[Path, LoopState] | None:
        """The newest; None before the first."""
        ...

    def remove_unfinished(self) -> None:
        """Removes what a learner that is dead left half-written."""
        ...


class PromptSource(Protocol):
    """Which prompt a group has: decided by its id alone."""

    def prompt(self, group_id: int) -> Prompt: ...


class Observer(Protocol):
    """Whoever makes metrics, the summary and the live view of what happens; times are of the controller's clock."""

    def training_began(self, now_s: float) -> None: ...

    def training_ended(self, now_s: float) -> None: ...

    def trained(self, version: int, groups: Sequence[TrajectoryGroup]) -> None:
        """The batch of `version` was these groups."""
        ...

    def stepped(self, version: int, metrics: StepMetrics, now_s: float) -> None: ...

    def evaluated(self, result: EvaluationResult) -> None: ...

    def published(self, manifest: WeightManifest, now_s: float) -> None: ...

    def activated(self, name: str, activation: Activation, now_s: float) -> None: ...

    def reported(self, name: str, stats: GeneratorStats, now_s: float) -> None: ...

    def checkpoint_begun(self, version: int) -> None:
        """The learner begins to write one of its present version."""
        ...

    def checkpointed(self, folder: Path, version: int, *, stood_s: float, write_s: float) -> None:
        """It is whole; training stood still for it, and it was written beside training."""
        ...

    def rolled_back(self, version: int, *, trained_tokens: int, is_training: bool) -> None:
        """The run has gone back to a checkpoint, of `version` (0: or to its start); what came later is undone.

        `trained_tokens` were trained until then. `is_training` is False where no batch may be generated yet, or the
        last one was trained before.
        """
        ...

    def said(self, message: str) -> None:
        """Something that the user should read."""
        ...

    def tick(self, *, version: int, phase: str, counts: Counts, roster: Roster, now_s: float) -> None:
        """Called a few times a second: draw, and write system metrics."""
        ...

    @property
    def run_hash(self) -> str | None:
        """The tracker's name of the run."""
        ...
