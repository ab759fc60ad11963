"""Telemetry: what happens in a run, made into metrics, a summary and a live view; an `Observer`.

Owns the names of the system's metrics (docs/metrics.md), rates from counters, and the pace at which records leave:
aggregated, every `tracking.interval_s`, never in the path of a message. Decides nothing and holds nobody up.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from async_rl.config.schema import RunConfig
from async_rl.controller.roster import Roster
from async_rl.evaluation import EvaluationResult
from async_rl.ledger import Counts
from async_rl.protocol import Activation, GeneratorStats, StepMetrics, TrajectoryGroup, WeightManifest
from async_rl.summary import SummaryBuilder
from async_rl.terminal.chart import number
from async_rl.terminal.status import EvaluationRow, GeneratorRow, LearnerRow, RunStatus
from async_rl.terminal.view import View
from async_rl.tracking.record import Record
from async_rl.trained_log import TrainedLog

LEARNER = "learner-0"
PACE_S = 0.5
"""Heartbeats come with deliveries, too, and requests end in bursts: over less, a rate says nothing."""


@dataclass
class Pace:
    """One generator's rates, over `PACE_S` or more; until there is as much, over what there is."""

    stats: GeneratorStats
    tokens_per_s: float = 0.0
    idle_share: float = 0.0
    _since: GeneratorStats = field(init=False)
    _is_first: bool = True

    def __post_init__(self) -> None:
        self._since = self.stats

    def report(self, stats: GeneratorStats) -> None:
        """A heartbeat: later than the last, or of a new process."""
        elapsed_s = stats.elapsed_s - self._since.elapsed_s
        if elapsed_s >= PACE_S or (self._is_first and elapsed_s > 0):
            self.tokens_per_s = (stats.sampled_tokens - self._since.sampled_tokens) / elapsed_s
            self.idle_share = (stats.idle_s - self._since.idle_s) / elapsed_s
        if elapsed_s >= PACE_S or elapsed_s < 0:
            self._since = stats
            self._is_first = False
        self.stats = stats


@dataclass
class Progress:
    """What the view shows of the run so far."""

    rewards: list[float] = field(default_factory=list)
    evaluation: EvaluationRow | None = None
    learner: LearnerRow | None = None
    checkpoint: str = ""
    training_since_s: float | None = None
    published_s: dict[int, float] = field(default_factory=dict)


class Telemetry:
    """Feeds the sink, the summary and the view."""

    def __init__(
        self,
        config: RunConfig,
        *,
        summary: SummaryBuilder,
        view: View,
        write: Callable[[Sequence[Record]], None],
        refused_frames: Callable[[], int],
        trained_log: TrainedLog,
        run_hash: str | None,
        version: int,
        now_s: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._summary = summary
        self._view = view
        self._write = write
        self._refused_frames = refused_frames
        self._trained_log = trained_log
        self._run_hash = run_hash
        self._first_version = self._version = version
        self._began_s = self._flushed_s = now_s
        self._wall_clock = wall_clock
        self._records: list[Record] = []
        self._paces: dict[str, Pace] = {}
        self._progress = Progress()

    # --- what the controller tells -------------------------------------------------------------

    @property
    def run_hash(self) -> str | None:
        """The tracker's name of the run."""
        return self._run_hash

    def training_began(self, now_s: float) -> None:
        """The first batch may be generated."""
        self._summary.training_began(now_s)
        self._progress.training_since_s = now_s

    def training_ended(self, now_s: float) -> None:
        """The last batch is trained."""
        self._summary.training_ended(now_s)

    def trained(self, version: int, groups: Sequence[TrajectoryGroup]) -> None:
        """The batch of `version` was these groups."""
        self._trained_log.append(version, groups)

    def stepped(self, version: int, metrics: StepMetrics, now_s: float) -> None:
        """A batch is trained."""
        self._version = version
        self._summary.stepped(version, metrics, now_s)
        scalars = metrics.scalars
        busy_s, wait_s = scalars["learner/step_s"], scalars["learner/wait_s"]
        rates = {
            "tokens_per_s": scalars["learner/tokens"] / (busy_s + wait_s),
            "idle_share": wait_s / (busy_s + wait_s),
        }
        self._record(scalars, histograms=metrics)
        self._record(rates, subject=LEARNER)
        self._progress.rewards.append(scalars["reward/mean"])
        self._progress.learner = LearnerRow(
            step_s=busy_s, loss=scalars.get("loss"), grad_norm=scalars.get("grad_norm"), **rates
        )

    def evaluated(self, result: EvaluationResult) -> None:
        """Held-out prompts were answered."""
        self._summary.evaluated(result)
        self._record({"evaluation/reward": result.reward, "evaluation/greedy": result.greedy}, step=result.version)
        self._progress.evaluation = EvaluationRow(version=result.version, reward=result.reward, greedy=result.greedy)
        self._view.say(
            f"Held-out prompts at version {result.version}: reward {number(result.reward)}, "
            f"greedy {number(result.greedy)}" + (f" ({result.num_failed} of them failed)" if result.num_failed else "")
        )

    def published(self, manifest: WeightManifest, now_s: float) -> None:
        """A version can be read."""
        self._summary.published(manifest, now_s)
        self._progress.published_s[manifest.version] = now_s
        self._record({"weights/gather_s": manifest.gather_s, "weights/write_s": manifest.transfer_s})

    def activated(self, name: str, activation: Activation, now_s: float) -> None:
        """A generator samples with a version."""
        self._summary.activated(activation, now_s)
        times = {"weights/read_s": activation.transfer_s, "weights/pause_s": activation.pause_s}
        published_s = self._progress.published_s.get(activation.version)
        if published_s is not None:
            times["weights/active_s"] = now_s - published_s
        self._record(times, subject=name, step=activation.version)

    def reported(self, name: str, stats: GeneratorStats, now_s: float) -> None:
        """A generator's heartbeat."""
        self._summary.reported(name, stats)
        if name not in self._paces:
            self._paces[name] = Pace(stats)
        self._paces[name].report(stats)

    def checkpoint_begun(self, version: int) -> None:
        """The learner begins to write one of its present version."""
        self._summary.checkpoint_begun(version)

    def checkpointed(self, folder: Path, version: int, *, stood_s: float, write_s: float) -> None:
        """A checkpoint is whole."""
        self._record({"learner/checkpoint_s": stood_s, "learner/checkpoint_write_s": write_s}, step=version)
        self._progress.checkpoint = str(folder)

    def rolled_back(self, version: int, *, trained_tokens: int, is_training: bool) -> None:
        """What came after `version` is undone: it stays in metrics.jsonl and in Aim, as after a resume, and nowhere
        else."""
        self._version = version
        self._trained_log.forget_from(version)
        self._summary.rolled_back(version, trained_tokens=trained_tokens, is_training=is_training)
        self._first_version = min(self._first_version, version)
        del self._progress.rewards[version - self._first_version :]
        self._progress.published_s.clear()
        if self._progress.evaluation is not None and self._progress.evaluation.version > version:
            self._progress.evaluation = None

    def said(self, message: str) -> None:
        """Something that the user should read."""
        self._view.say(message)

    def tick(self, *, version: int, phase: str, counts: Counts, roster: Roster, now_s: float) -> None:
        """Draws; now and then writes the system's metrics and hands over what has gathered."""
        self._view.update(self._status(phase, counts, roster, now_s))
        if now_s - self._flushed_s < self._config.tracking.interval_s:
            return
        self._flushed_s = now_s
        self._record({f"ledger/{name}": float(n) for name, n in msgspec.structs.asdict(counts).items()})
        self._record({"channel/refused": float(self._refused_frames())})
        for name, pace in self._paces.items():
            self._record(_system_metrics(pace), subject=name)
        self.flush()

    def flush(self) -> None:
        """Hands over what has gathered."""
        if self._records:
            self._write(self._records)
            self._records = []

    # --- inside --------------------------------------------------------------------------------

    def _record(
        self,
        scalars: dict[str, float],
        *,
        histograms: StepMetrics | None = None,
        subject: str = "",
        step: int | None = None,
    ) -> None:
        self._records.append(
            Record(
                step=self._version if step is None else step,
                time_s=self._wall_clock(),
                scalars=scalars,
                histograms=histograms.histograms if histograms else {},
                subject=subject,
            )
        )

    def _status(self, phase: str, counts: Counts, roster: Roster, now_s: float) -> RunStatus:
        progress = self._progress
        since_s = progress.training_since_s
        return RunStatus(
            name=self._config.name,
            phase=phase,
            version=self._version,
            steps=self._config.steps,
            elapsed_s=now_s - self._began_s,
            generators=tuple(self._row(peer.name, peer.active_version, peer.has_weights) for peer in roster.by_name()),
            learner=progress.learner,
            staleness=tuple(self._summary.staleness.histogram),
            staleness_bound=self._config.staleness.max,
            rewards=tuple(progress.rewards),
            evaluation=progress.evaluation,
            counts=counts,
            checkpoint=progress.checkpoint,
            training_s=0.0 if since_s is None else now_s - since_s,
            first_version=self._first_version,
        )

    def _row(self, name: str, version: int, has_weights: bool) -> GeneratorRow:
        pace = self._paces.get(name)
        return GeneratorRow(
            name=name,
            version=version if has_weights else None,
            running=pace.stats.running_requests if pace else 0,
            tokens_per_s=pace.tokens_per_s if pace else 0.0,
            idle_share=pace.idle_share if pace else 0.0,
        )


def _system_metrics(pace: Pace) -> dict[str, float]:
    stats = pace.stats
    return {
        "tokens_per_s": pace.tokens_per_s,
        "idle_share": pace.idle_share,
        "generator/active_version": float(stats.active_version),
        "generator/running_requests": float(stats.running_requests),
        "generator/paused_s": stats.paused_s,
        "generator/reward_errors": float(stats.reward_errors),
        "generator/reward_timeouts": float(stats.reward_timeouts),
        "generator/resampled": float(stats.resampled),
    }
