"""Reports: what generators and the learner say of themselves.

Owns counters and metrics on the wire; docs/metrics.md has the names.
"""

import msgspec

from async_rl.protocol.wire import Wire


class GeneratorStats(Wire, frozen=True, kw_only=True):
    """What a generator reports with each heartbeat; counters since its start, times in seconds."""

    active_version: int
    running_requests: int
    sampled_tokens: int
    elapsed_s: float
    idle_s: float
    """Of `elapsed_s`, while no request was in the engine."""
    paused_s: float
    """Of `elapsed_s`, while the engine stood still for weights."""
    reward_errors: int
    reward_timeouts: int
    resampled: int
    """Samples generated again because their reward failed."""


class Histogram(Wire, frozen=True, kw_only=True):
    """Counts between edges: `len(edges) == len(counts) + 1`."""

    edges: list[float]
    counts: list[int]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError(f"a histogram of {len(self.counts)} counts between {len(self.edges)} edges")


class StepMetrics(Wire, frozen=True, kw_only=True):
    """What the learner says of one step."""

    scalars: dict[str, float]
    """By metric name (docs/metrics.md)."""
    histograms: dict[str, Histogram] = msgspec.field(default_factory=dict)
