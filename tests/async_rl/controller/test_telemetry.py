"""What happens in a run becomes records, messages and snapshots; all names are documented."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from async_rl.config.loop import TrackingConfig
from async_rl.config.schema import RunConfig
from async_rl.config.staleness import StalenessConfig
from async_rl.controller.roster import Roster
from async_rl.controller.telemetry import Telemetry
from async_rl.evaluation import EvaluationResult
from async_rl.ledger import Counts
from async_rl.protocol import Activation, GeneratorStats, Histogram, StepMetrics, WeightManifest
from async_rl.summary import SummaryBuilder
from async_rl.terminal.status import RunStatus
from async_rl.tracking.record import Record
from async_rl.trained_log import TrainedLog
from tests.async_rl.groups import make_group

COUNTS = Counts(issued=9, trained=4, stale=0, filtered=0, failed=1, queued=0, leased=3, delivered=1, batched=0)


@dataclass
class Shown:
    """A view that remembers."""

    snapshots: list[RunStatus] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def update(self, status: RunStatus) -> None:
        self.snapshots.append(status)

    def say(self, message: str) -> None:
        self.messages.append(message)

    def close(self) -> None: ...


class Desk:
    """A telemetry and everything that it gave away."""

    def __init__(self, folder: Path) -> None:
        self.view = Shown()
        self.records: list[Record] = []
        self.writes = 0
        self.trained_log = TrainedLog(folder / "trained.jsonl")
        self.telemetry = Telemetry(
            RunConfig(name="it", steps=10, staleness=StalenessConfig(max=4), tracking=TrackingConfig(interval_s=1.0)),
            summary=SummaryBuilder(),
            view=self.view,
            write=self._write,
            refused_frames=lambda: 7,
            trained_log=self.trained_log,
            run_hash="abc",
            version=0,
            now_s=100.0,
            wall_clock=lambda: 1234.5,
        )
        self.roster = Roster()

    def _write(self, records: Sequence[Record]) -> None:
        self.writes += 1
        self.records += records

    def tick(self, now_s: float) -> None:
        self.telemetry.tick(version=0, phase="training", counts=COUNTS, roster=self.roster, now_s=now_s)

    def values(self, name: str, *, subject: str = "") -> list[float]:
        return [r.scalars[name] for r in self.records if r.subject == subject and name in r.scalars]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def stats(sampled_tokens: int, elapsed_s: float, idle_s: float) -> GeneratorStats:
    return GeneratorStats(
        active_version=2,
        running_requests=5,
        sampled_tokens=sampled_tokens,
        elapsed_s=elapsed_s,
        idle_s=idle_s,
        paused_s=0.5,
        reward_errors=1,
        reward_timeouts=2,
        resampled=3,
    )


STEP = StepMetrics(
    scalars={
        "reward/mean": 0.75,
        "loss": -0.5,
        "grad_norm": 2.0,
        "learner/step_s": 3.0,
        "learner/wait_s": 1.0,
        "learner/tokens": 800.0,
        "importance/mean": 1.0,
        "importance/max": 2.0,
        "importance/truncated_share": 0.0,
        "importance/ess": 1.0,
        "mu_prox/max_abs": 0.0,
        "mu_prox/k3": 0.0,
    },
    histograms={"staleness": Histogram(edges=[0, 1, 2], counts=[600, 200])},
)
MANIFEST = WeightManifest(
    version=1, transport="shm", location="", generation=1, tensors=[], num_bytes=0, gather_s=0.25, transfer_s=0.125
)


def test_rates_of_a_generator_are_between_its_last_two_reports(desk: Desk) -> None:
    desk.telemetry.reported("generator-0", stats(100, 10.0, 9.0), 101.0)
    desk.telemetry.reported("generator-0", stats(400, 12.0, 9.5), 103.0)
    desk.tick(104.0)
    assert desk.values("tokens_per_s", subject="generator-0") == [150.0]
    assert desk.values("idle_share", subject="generator-0") == [0.25]
    assert desk.values("generator/resampled", subject="generator-0") == [3.0]


def test_reports_close_together_make_one_rate(desk: Desk) -> None:
    desk.telemetry.reported("generator-0", stats(100, 10.0, 9.0), 101.0)
    desk.telemetry.reported("generator-0", stats(150, 10.25, 9.125), 101.25)
    desk.tick(102.0)
    desk.telemetry.reported("generator-0", stats(200, 10.5, 9.25), 101.5)
    desk.telemetry.reported("generator-0", stats(900, 10.51, 9.25), 101.51)
    desk.tick(104.0)
    assert desk.values("tokens_per_s", subject="generator-0") == [200.0, 200.0]
    assert desk.values("idle_share", subject="generator-0") == [0.5, 0.5]


def test_a_generator_that_was_started_again_has_no_negative_rate(desk: Desk) -> None:
    desk.telemetry.reported("generator-0", stats(1000, 50.0, 0.0), 101.0)
    desk.telemetry.reported("generator-0", stats(10, 1.0, 0.5), 102.0)
    desk.telemetry.reported("generator-0", stats(30, 2.0, 0.5), 103.0)
    desk.tick(104.0)
    assert desk.values("tokens_per_s", subject="generator-0") == [20.0]


def test_a_step_is_recorded_with_the_learners_rates(desk: Desk) -> None:
    desk.telemetry.stepped(1, STEP, 105.0)
    desk.telemetry.flush()
    assert desk.values("reward/mean") == [0.75]
    assert desk.values("tokens_per_s", subject="learner-0") == [200.0]
    assert desk.values("idle_share", subject="learner-0") == [0.25]
    assert [r.step for r in desk.records] == [1, 1]
    assert desk.records[0].histograms == STEP.histograms
    assert {r.time_s for r in desk.records} == {1234.5}


def test_system_metrics_leave_once_an_interval_and_not_with_every_tick(desk: Desk) -> None:
    for now_s in (100.25, 100.5, 100.75):
        desk.tick(now_s)
    assert desk.writes == 0
    desk.tick(101.0)
    assert desk.writes == 1
    assert desk.values("ledger/leased") == [3.0]
    assert desk.values("channel/refused") == [7.0]
    assert sum(desk.values(f"ledger/{name}")[0] for name in COUNTS.__struct_fields__[1:]) == 9.0
    desk.tick(101.25)
    assert desk.writes == 1
    assert len(desk.view.snapshots) == 5, "the view is told each time"


def test_a_versions_way_is_timed_from_its_publishing(desk: Desk) -> None:
    desk.telemetry.published(MANIFEST, 110.0)
    desk.telemetry.activated("generator-0", Activation(version=1, transfer_s=0.5, pause_s=0.0625), 112.0)
    desk.telemetry.flush()
    assert desk.values("weights/gather_s") == [0.25]
    assert desk.values("weights/write_s") == [0.125]
    assert desk.values("weights/read_s", subject="generator-0") == [0.5]
    assert desk.values("weights/pause_s", subject="generator-0") == [0.0625]
    assert desk.values("weights/active_s", subject="generator-0") == [2.0]


def test_a_snapshot_shows_where_the_run_is(desk: Desk, tmp_path: Path) -> None:
    desk.roster.join("generator-0", "a", 100.0)
    desk.telemetry.training_began(101.0)
    desk.telemetry.reported("generator-0", stats(100, 10.0, 9.0), 101.0)
    desk.telemetry.evaluated(EvaluationResult(version=0, reward=0.25, greedy=0.5, num_answers=4, num_failed=1))
    desk.telemetry.stepped(1, STEP, 105.0)
    desk.telemetry.checkpointed(tmp_path / "00000001", 1, stood_s=0.25, write_s=2.0)
    desk.tick(106.0)
    shown = desk.view.snapshots[-1]
    assert (shown.version, shown.steps, shown.elapsed_s, shown.training_s, shown.eta_s) == (1, 10, 6.0, 5.0, 45.0)
    assert shown.generators[0].version is None, "it has no weights yet"
    assert shown.generators[0].running == 5
    assert shown.learner is not None and shown.learner.loss == -0.5
    assert (shown.rewards, shown.staleness, shown.staleness_bound) == ((0.75,), (600, 200), 4)
    assert shown.checkpoint.endswith("00000001")
    assert desk.view.messages == [
        "Held-out prompts at version 0: reward 0.250, greedy 0.500 (1 of them failed)",
    ]


def test_what_a_restart_undid_is_neither_shown_nor_in_the_log_of_what_trained(desk: Desk, tmp_path: Path) -> None:
    desk.telemetry.training_began(101.0)
    for version in (1, 2, 3):
        desk.telemetry.trained(version - 1, [make_group(version)])
        desk.telemetry.stepped(version, STEP, 105.0)
        if version == 1:
            desk.telemetry.checkpoint_begun(1)
    desk.telemetry.checkpointed(tmp_path / "00000001", 1, stood_s=0.25, write_s=2.0)
    desk.telemetry.evaluated(EvaluationResult(version=3, reward=0.25, greedy=0.5, num_answers=4, num_failed=0))
    desk.telemetry.rolled_back(1, trained_tokens=800, is_training=True)
    desk.tick(106.0)
    shown = desk.view.snapshots[-1]
    assert (shown.version, shown.rewards, shown.staleness, shown.evaluation) == (1, (0.75,), (600, 200), None)
    assert [batch.group_ids for batch in desk.trained_log.read()] == [[1]]
    assert desk.values("reward/mean") == [0.75] * 3, "metrics keep it, as they do after a resume"
    assert desk.values("learner/checkpoint_s") == [0.25] and desk.values("learner/checkpoint_write_s") == [2.0]


def test_an_evaluation_without_an_answer_has_no_number(desk: Desk) -> None:
    nan = float("nan")
    desk.telemetry.evaluated(EvaluationResult(version=0, reward=nan, greedy=nan, num_answers=0, num_failed=4))
    assert desk.view.messages == ["Held-out prompts at version 0: reward –, greedy – (4 of them failed)"]


def test_what_was_trained_is_written_down(desk: Desk) -> None:
    desk.telemetry.trained(3, [make_group(8, versions=(2, 3))])
    (line,) = desk.trained_log.read()
    assert (line.version, line.group_ids, line.oldest_versions) == (3, [8], [2])


def test_every_name_is_documented(desk: Desk, repository: Path) -> None:
    desk.telemetry.published(MANIFEST, 110.0)
    desk.telemetry.activated("generator-0", Activation(version=1, transfer_s=0.5, pause_s=0.5), 112.0)
    desk.telemetry.reported("generator-0", stats(100, 10.0, 9.0), 101.0)
    desk.telemetry.evaluated(EvaluationResult(version=0, reward=0.25, greedy=0.5, num_answers=4, num_failed=0))
    desk.telemetry.stepped(1, STEP, 113.0)
    desk.tick(114.0)
    rows = re.findall(r"^\| (`.+?`) \|", (repository / "docs/metrics.md").read_text(), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    names = {name for record in desk.records for name in record.scalars}
    assert len(names) > 25
    assert names <= documented, names - documented
