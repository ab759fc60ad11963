"""What the sink wrote can be read back from its file; the dashboard's test reads it from Aim."""

import json
from pathlib import Path

from async_rl.protocol import Histogram
from async_rl.tracking.aim_tracker import to_distribution
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
