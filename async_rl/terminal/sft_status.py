"""What a view of a fine-tuning shows: a snapshot, without a clock of its own.

Owns the words between whoever watches it and whoever draws it. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Step:
    """The last optimizer step."""

    loss: float
    grad_norm: float
    lr: float
    tokens_per_s: float
    mfu: float
    memory_gib: float


@dataclass(frozen=True, kw_only=True)
class SftStatus:
    """A fine-tuning at one moment."""

    name: str
    step: int
    """Steps done."""
    steps: int
    """Steps to do."""
    elapsed_s: float
    """Since the launch."""
    training_s: float = 0.0
    """Since the first step of this launch could begin."""
    first_step: int = 0
    """Steps done before this launch."""
    num_ranks: int = 1
    last: Step | None = None
    losses: Sequence[float] = ()
    """Of every step of this launch."""
    validations: Sequence[float] = ()
    best_step: int = 0
    """Of the lowest validation loss; 0 before the first."""
    best_loss: float | None = None
    checkpoint: str = ""
    """The latest; empty before the first."""

    @property
    def eta_s(self) -> float | None:
        """Until the last step, at the pace so far; None before the first."""
        done = self.step - self.first_step
        return (self.steps - self.step) * self.training_s / done if done > 0 else None
