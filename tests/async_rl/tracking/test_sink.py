"""What the sink wrote can be read back from its file; the dashboard's test reads it from Aim."""

import json
from pathlib import Path

import pytest

from async_rl.protocol import Histogram
from async_rl.tracking.aim_tracker import AimTracker, to_distribution
from async_rl.tracking.jsonl_tracker import JsonlTracker
from async_rl.tracking.record import Record
from async_rl.tracking.sink import MetricsSink

HISTOGRAM = Histogram(edges=[0.0, 1.0, 2.0, 3.0], counts=[5, 0, 2])


def records(step: int) -> list[Record]:
    return [
        Record(step=step, time_s=1.5, scalars={"reward/mean": step / 10, "bad": float("nan")}),
        Record(step=step, time_s=1.5, scalars={"idle": 0.25}, subject="generator-0"),
        Record(
            step=step, time_s=1.5, histograms={"staleness": HISTOGRAM, "empty": Histogram(edges=[0, 1], counts=[0])}
        ),
    ]


def test_the_file_has_a_json_object_a_record_and_null_for_nan(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        sink = MetricsSink(metrics=path, aim_repo=None, name="", params={}, run_hash=None)
        assert sink.run_hash() is None
        sink.write(records(step))
        sink.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 6
    assert lines[0] == {
        "step": 1,
        "time_s": 1.5,
        "subject": "",
        "scalars": {"reward/mean": 0.1, "bad": None},
        "histograms": {},
    }
    assert lines[4]["subject"] == "generator-0"
    assert lines[5]["histograms"]["staleness"] == {"edges": [0.0, 1.0, 2.0, 3.0], "counts": [5, 0, 2]}


def test_uneven_bins_are_shared_out_over_even_ones() -> None:
    distribution = to_distribution(Histogram(edges=[0.0, 1.0, 4.0], counts=[4, 6]))
    assert list(distribution.weights) == [6, 4], "two even bins over [0, 4]: 4 + a third of 6, and the rest"
    assert list(distribution.ranges) == [0.0, 2.0, 4.0]


def test_half_a_line_of_a_former_life_swallows_no_record(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "sca')
    tracker = JsonlTracker(path)
    tracker.write(records(2))
    tracker.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 2 + 3
    assert [json.loads(line)["step"] for line in lines[2:]] == [2, 2, 2]


def test_a_run_goes_on_without_an_aim_that_cannot_be_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "repo").write_text("a file where a folder should be")
    metrics = tmp_path / "metrics.jsonl"
    sink = MetricsSink(metrics=metrics, aim_repo=tmp_path / "repo", name="run", params={}, run_hash=None)
    assert sink.run_hash() is None
    assert "this run has no dashboard" in caplog.text
    sink.write(records(1))
    sink.close()
    assert len(metrics.read_text().splitlines()) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_records_that_aim_does_not_take_are_counted_and_said_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = AimTracker(tmp_path, name="run", params={}, run_hash=None)
    backwards = Record(step=1, time_s=0.0, histograms={"h": Histogram(edges=[0.0, float("nan")], counts=[1])})
    tracker.write([backwards] * 9)
    assert tracker.failures == 9
    assert [record.getMessage() for record in caplog.records] == [
        f"Aim did not take a record of step 1 ({failures} so far)" for failures in (1, 2, 4, 8)
    ]
    tracker.write([Record(step=1, time_s=0.0, scalars={"loss": 1.0})])
    assert tracker.failures == 9
    tracker.close()
