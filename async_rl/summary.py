"""What a run came to: the keys of summary.json, and how they are made of what happened.

Owns the names in docs/summary.md and each number's definition. Pure: times come in as arguments, of any one
clock in seconds. Knows no file, no terminal and no tracker.
"""

import math
from copy import deepcopy
from enum import StrEnum
from statistics import median

import msgspec

from async_rl.evaluation import EvaluationResult
from async_rl.ledger import Counts
from async_rl.protocol import Activation, GeneratorStats, StepMetrics, WeightManifest
from async_rl.totals import GeneratorTotals, TrainedTotals


class Exit(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


class Part(msgspec.Struct, frozen=True):
    """Base of everything in summary.json."""


class StartEnd(Part, frozen=True, kw_only=True):
    """Before the first and after the last batch; null without held-out rows or without that evaluation."""

    start: float | None
    end: float | None


class BySide(Part, frozen=True, kw_only=True):
    """One number for all generators together, one for the learner; null where nothing was trained."""

    generators: float | None
    learner: float | None


class Staleness(Part, frozen=True, kw_only=True):
    """Over trained tokens, in versions."""

    mean: float | None
    p95: float | None
    max: int | None
    histogram: list[int]
    """Trained tokens of staleness 0, 1, 2, …"""


class Importance(Part, frozen=True, kw_only=True):
    """Weights π_prox/μ over trained tokens, as they entered the loss."""

    mean: float | None
    max: float | None
    truncated_share: float | None
    ess: float | None
    """Effective sample size as a share of the tokens, mean over steps."""


class MuProx(Part, frozen=True, kw_only=True):
    """How far the engine's log-probabilities μ lie from the learner's π_prox on the same tokens."""

    max_abs: float | None
    k3: float | None


class WeightTimes(Part, frozen=True, kw_only=True):
    """Medians over the versions delivered while training, in seconds."""

    gather_s: float | None
    transfer_s: float | None
    """Written by the learner, read and verified by a generator."""
    pause_s: float | None
    """An engine stood still."""
    active_s: float | None
    """From published to sampled with."""


class Summary(Part, frozen=True, kw_only=True):
    """summary.json."""

    reward: StartEnd
    greedy: StartEnd
    steps: int
    trained_tokens: int
    wall_s: float | None
    tokens_per_s: BySide
    idle: BySide
    staleness: Staleness
    importance: Importance
    mu_prox: MuProx
    ledger: Counts
    weights: WeightTimes
    exit: Exit

    def to_json(self) -> bytes:
        """The text of summary.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> "Summary":
        """Reads summary.json; raises `msgspec.DecodeError` where it is not one."""
        return msgspec.json.decode(text, type=cls)


class SummaryBuilder:
    """Told what happens as it happens; `build` gives the summary at any time.

    What a restart undoes is taken out of all that is said of trained batches and evaluations; time that it took stays.
    """

    def __init__(self, *, trained_tokens: int = 0, version: int = 0) -> None:
        """A run that begins at `version`, where its checkpoint had trained `trained_tokens`."""
        self.generators = GeneratorTotals()
        self._earlier_tokens = trained_tokens
        self._trained = TrainedTotals(version=version)
        self._at_checkpoints = {version: deepcopy(self._trained)}
        self._began_s: float | None = None
        self._last_s: float | None = None
        self._is_training = False
        self._busy_s = 0.0
        self._evaluations: list[EvaluationResult] = []
        self._published: dict[int, tuple[WeightManifest, float]] = {}
        self._gather_s: list[float] = []
        self._transfer_s: list[float] = []
        self._pause_s: list[float] = []
        self._active_s: list[float] = []

    def training_began(self, now_s: float) -> None:
        """The first evaluation is over, batches begin."""
        self._began_s = self._last_s = now_s
        self._is_training = True

    def training_ended(self, now_s: float) -> None:
        """The last batch is trained."""
        self._last_s = now_s
        self._is_training = False

    def stepped(self, version: int, metrics: StepMetrics, now_s: float) -> None:
        """The learner has trained a batch."""
        self._last_s = now_s
        self._busy_s += metrics.scalars["learner/step_s"]
        self._trained.add(version, metrics)

    def checkpoint_begun(self, version: int) -> None:
        """One that covers all batches so far."""
        self._at_checkpoints[version] = deepcopy(self._trained)

    def rolled_back(self, version: int, *, trained_tokens: int, is_training: bool) -> None:
        """The run has gone back to a checkpoint of `version`, perhaps an earlier run's, or to its start.

        See `Observer.rolled_back`.
        """
        self._trained = deepcopy(self._at_checkpoints.get(version, TrainedTotals(version=version)))
        self._earlier_tokens = trained_tokens - self._trained.tokens
        self._evaluations = [e for e in self._evaluations if e.version <= version]
        self._is_training = is_training

    def evaluated(self, result: EvaluationResult) -> None:
        """Held-out prompts were answered."""
        self._evaluations.append(result)

    def published(self, manifest: WeightManifest, now_s: float) -> None:
        """A version can be read."""
        self._published[manifest.version] = (manifest, now_s)
        if self._is_training:
            self._gather_s.append(manifest.gather_s)

    def activated(self, activation: Activation, now_s: float) -> None:
        """A generator samples with a version."""
        published = self._published.get(activation.version)
        if not self._is_training or published is None:
            return
        manifest, published_s = published
        self._transfer_s.append(manifest.transfer_s + activation.transfer_s)
        self._pause_s.append(activation.pause_s)
        self._active_s.append(now_s - published_s)

    def reported(self, name: str, stats: GeneratorStats) -> None:
        """A generator's heartbeat."""
        self.generators.report(name, stats, counts=self._is_training)

    def build(self, counts: Counts, exit_: Exit) -> Summary:
        """The summary of everything told so far."""
        wall_s, trained = self._wall_s, self._trained
        return Summary(
            reward=self._start_end([e.reward for e in self._evaluations]),
            greedy=self._start_end([e.greedy for e in self._evaluations]),
            steps=trained.version,
            trained_tokens=self._earlier_tokens + trained.tokens,
            wall_s=wall_s,
            tokens_per_s=BySide(
                generators=_ratio(self.generators.sampled_tokens, wall_s), learner=_ratio(trained.tokens, wall_s)
            ),
            idle=BySide(
                generators=_ratio(self.generators.idle_s, self.generators.elapsed_s),
                learner=None if wall_s is None else max(0.0, 1.0 - self._busy_s / wall_s),
            ),
            staleness=self.staleness,
            importance=Importance(
                mean=trained.importance["mean"].value,
                max=trained.importance_max,
                truncated_share=trained.importance["truncated_share"].value,
                ess=trained.importance["ess"].value,
            ),
            mu_prox=MuProx(max_abs=trained.max_abs, k3=trained.k3.value),
            ledger=counts,
            weights=WeightTimes(
                gather_s=_median(self._gather_s),
                transfer_s=_median(self._transfer_s),
                pause_s=_median(self._pause_s),
                active_s=_median(self._active_s),
            ),
            exit=exit_,
        )

    @property
    def staleness(self) -> Staleness:
        """Of the tokens trained so far."""
        histogram = list(self._trained.staleness)
        total = sum(histogram)
        if not total:
            return Staleness(mean=None, p95=None, max=None, histogram=[])
        return Staleness(
            mean=sum(n * count for n, count in enumerate(histogram)) / total,
            p95=float(_quantile(histogram, 0.95)),
            max=len(histogram) - 1,
            histogram=histogram,
        )

    @property
    def _wall_s(self) -> float | None:
        """From the first lease to the last commit; None where no time has passed."""
        if self._began_s is None or self._last_s is None or self._last_s <= self._began_s:
            return None
        return self._last_s - self._began_s

    def _start_end(self, values: list[float]) -> StartEnd:
        """The last evaluation is the end's only if it is of the version that the run came to."""
        if not values:
            return StartEnd(start=None, end=None)
        ends_here = len(values) > 1 and self._evaluations[-1].version == self._trained.version
        return StartEnd(start=_number(values[0]), end=_number(values[-1]) if ends_here else None)


def _ratio(amount: float, of: float | None) -> float | None:
    return amount / of if of else None


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def _number(value: float) -> float | None:
    """JSON knows no NaN: an evaluation without an answer has no mean."""
    return None if math.isnan(value) else value


def _quantile(counts: list[int], share: float) -> int:
    """The smallest value that at least `share` of all do not exceed."""
    due, seen = share * sum(counts), 0
    for value, count in enumerate(counts):
        seen += count
        if seen >= due:
            return value
    return len(counts) - 1
