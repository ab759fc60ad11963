"""One line of metrics, and whoever takes such lines.

Owns the words of tracking. Knows no tool that draws metrics, and no process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from async_rl.protocol import Histogram


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was measured at one moment of one subject."""

    step: int
    """Learner version."""
    time_s: float
    """Since the epoch."""
    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    subject: str = ""
    """Whose metrics these are (`generator-0`); empty for the run's own."""


class Tracker(Protocol):
    """Takes records, in order, from one thread."""

    def write(self, records: Sequence[Record]) -> None: ...

    def close(self) -> None: ...
