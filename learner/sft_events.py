"""What a fine-tuning tells whoever shows and keeps it.

Owns the words. They travel between processes, so they hold plain values alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from learner.backend import StepResult


@dataclass(frozen=True, kw_only=True)
class Said:
    """Something that the user should read."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Began:
    """Everything is loaded: the next thing is a step."""

    num_examples: int
    num_held_out: int
    num_ranks: int


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """An optimizer step is done."""

    step: int
    """From 1."""
    result: StepResult
    num_tokens: int
    """Of the whole batch, those included that are only read."""
    num_learned: int
    step_s: float
    imbalance: float
    """Of the micro-batches of all shards: the costliest over the mean."""
    mfu: float
    """Share of the devices' peak that the step came to."""
    memory_gib: float
    """The most that a rank has held so far."""


@dataclass(frozen=True, kw_only=True)
class Validated:
    """The loss on all held-out rows, nats a token."""

    step: int
    loss: float
    best_step: int
    """With the lowest so far, also before a resumption; 0 before any that is finite."""
    best_loss: float | None


@dataclass(frozen=True, kw_only=True)
class Checkpointed:
    """From now on the run can be resumed from here."""

    step: int
    folder: str
    stood_s: float
    """Training stood still for it."""
    write_s: float
    """It was written beside training."""


SftEvent = Said | Began | Stepped | Validated | Checkpointed
Tell = Callable[[SftEvent], None]
