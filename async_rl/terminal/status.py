"""What a view shows: a snapshot of the run, without a clock of its own.

Owns the words between whoever watches a run and whoever draws it. Pure.
"""

from dataclasses import dataclass

from async_rl.ledger import Counts


@dataclass(frozen=True, kw_only=True)
class GeneratorRow:
    """One generator, now."""

    name: str
    version: int | None
    """None before its first weights."""
    running: int
    """Requests in its engine."""
    tokens_per_s: float
    idle_share: float
    """Of the time since the last report or so, with nothing in the engine."""


@dataclass(frozen=True, kw_only=True)
class LearnerRow:
    """The learner's last steps."""

    step_s: float
    tokens_per_s: float
    idle_share: float
    loss: float | None
    """Of the policy; None while the critic alone trains."""
    grad_norm: float | None


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """What the policy earned on held-out prompts; None where nothing was answered."""

    version: int
    reward: float | None
    greedy: float | None


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment."""

    name: str
    phase: str
    version: int
    """Batches trained."""
    steps: int
    """Batches to train."""
    elapsed_s: float
    """Since the launch."""
    generators: tuple[GeneratorRow, ...] = ()
    learner: LearnerRow | None = None
    staleness: tuple[int, ...] = ()
    """Trained tokens of staleness 0, 1, 2, …"""
    staleness_bound: int = 0
    rewards: tuple[float, ...] = ()
    """Mean reward of every batch."""
    evaluation: EvaluationRow | None = None
    """The latest."""
    counts: Counts | None = None
    checkpoint: str = ""
    """The latest; empty before the first."""
    training_s: float = 0.0
    """Since the first batch of this launch could begin."""
    first_version: int = 0
    """The version that this launch began with."""

    @property
    def eta_s(self) -> float | None:
        """Until the last batch, at the pace so far; None before the first."""
        done = self.version - self.first_version
        if done <= 0 or self.training_s <= 0:
            return None
        return (self.steps - self.version) * self.training_s / done
