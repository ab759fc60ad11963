"""Totals of a run: what generators did, and what was trained.

Owns sums and means over events, told one after the other. Pure; knows no summary and no clock.
"""

from dataclasses import dataclass, field

from async_rl.protocol import GeneratorStats, StepMetrics


@dataclass(kw_only=True)
class TokenMean:
    """A mean over tokens, of means over the tokens of one step."""

    total: float = 0.0
    tokens: float = 0.0

    def add(self, mean: float, tokens: float) -> None:
        if not tokens:
            # A batch that is rejected whole has no mean.
            return
        self.total += mean * tokens
        self.tokens += tokens

    @property
    def value(self) -> float | None:
        return self.total / self.tokens if self.tokens else None


@dataclass(kw_only=True)
class GeneratorTotals:
    """What generators did while training, over restarts: their counters begin anew with each process."""

    last: dict[str, GeneratorStats] = field(default_factory=dict)
    sampled_tokens: int = 0
    elapsed_s: float = 0.0
    idle_s: float = 0.0

    def report(self, name: str, stats: GeneratorStats, *, counts: bool) -> None:
        """A heartbeat; `counts` is False outside of training."""
        last = self.last.get(name)
        self.last[name] = stats
        if not counts or last is None:
            return
        restarted = stats.elapsed_s < last.elapsed_s
        self.sampled_tokens += stats.sampled_tokens - (0 if restarted else last.sampled_tokens)
        self.elapsed_s += stats.elapsed_s - (0.0 if restarted else last.elapsed_s)
        self.idle_s += stats.idle_s - (0.0 if restarted else last.idle_s)


@dataclass(kw_only=True)
class TrainedTotals:
    """What was trained since the start, in batches that no restart has undone."""

    version: int
    """Batches, with those before the start."""
    tokens: int = 0
    staleness: list[int] = field(default_factory=list)
    """Tokens of staleness 0, 1, 2, …"""
    importance: dict[str, TokenMean] = field(
        default_factory=lambda: {name: TokenMean() for name in ("mean", "truncated_share", "ess")}
    )
    importance_max: float | None = None
    k3: TokenMean = field(default_factory=TokenMean)
    max_abs: float | None = None

    def add(self, version: int, metrics: StepMetrics) -> None:
        """A batch."""
        scalars, tokens = metrics.scalars, metrics.scalars["learner/tokens"]
        self.version = version
        self.tokens += int(tokens)
        for name, mean in self.importance.items():
            mean.add(scalars[f"importance/{name}"], tokens)
        self.k3.add(scalars["mu_prox/k3"], tokens)
        self.importance_max = _larger(self.importance_max, scalars["importance/max"])
        self.max_abs = _larger(self.max_abs, scalars["mu_prox/max_abs"])
        histogram = metrics.histograms["staleness"]
        for edge, count in zip(histogram.edges, histogram.counts, strict=False):
            self._count_staleness(int(edge), count)

    def _count_staleness(self, staleness: int, count: int) -> None:
        if not count:
            return
        assert staleness >= 0, f"a token of staleness {staleness} was sampled by weights of the future"
        self.staleness += [0] * (staleness + 1 - len(self.staleness))
        self.staleness[staleness] += count


def _larger(known: float | None, value: float) -> float:
    return value if known is None else max(known, value)
