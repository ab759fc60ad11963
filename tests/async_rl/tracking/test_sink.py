"""What the sink wrote can be read back, from the file and from a real Aim repository."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from async_rl.protocol import Histogram
from async_rl.tracking.aim_tracker import to_distribution
from async_rl.tracking.record import Record
from async_rl.tracking.sink import MetricsSink

HISTOGRAM = Histogram(edges=[0.0, 1.0, 2.0, 3.0], counts=[5, 0, 2])


# Another process, as a dashboard is: the writer's own handles would show what is not on disk.
READER = """
import json, sys
import aim
(run,) = list(aim.Repo.from_path(sys.argv[1]).iter_runs())
own, other = aim.Context({}), aim.Context({"subject": "generator-0"})
points = lambda name, context: [list(p) for p in run.get_metric(name, context).values.sparse_list()]
print(json.dumps({
    "hash": run.hash,
    "config": run["config"],
    "reward/mean": points("reward/mean", own),
    "idle": points("idle", other),
    "has_nan": run.get_metric("bad", own) is not None,
    "staleness": [d.weights.tolist() for d in run.get_distribution("staleness", own).values.sparse_list()[1]],
}))
"""


WRITER = """
import sys
from pathlib import Path
from async_rl.tracking.sink import MetricsSink
from tests.async_rl.tracking.test_sink import records
folder, step, run_hash = Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [None])[0]
params = {"steps": 2, "staleness": {"max": 4}}
sink = MetricsSink(metrics=folder / "m.jsonl", aim_repo=folder, name="a run", params=params, run_hash=run_hash)
sink.write(records(step))
sink.close()
print(sink.run_hash())
"""


def records(step: int) -> list[Record]:
    return [
        Record(step=step, time_s=1.5, scalars={"reward/mean": step / 10, "bad": float("nan")}),
        Record(step=step, time_s=1.5, scalars={"idle": 0.25}, subject="generator-0"),
        Record(
            step=step, time_s=1.5, histograms={"staleness": HISTOGRAM, "empty": Histogram(edges=[0, 1], counts=[0])}
        ),
    ]


def track_in_another_process(folder: Path, step: int, run_hash: str | None) -> str:
    """As every start of a run does."""
    arguments = [str(folder), str(step), *([run_hash] if run_hash else [])]
    writer = subprocess.run(
        [sys.executable, "-c", WRITER, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return writer.stdout.splitlines()[-1]


@pytest.mark.integration
def test_a_run_and_its_resumption_are_one_curve_in_aim(tmp_path: Path) -> None:
    run_hash = track_in_another_process(tmp_path, 1, None)
    assert track_in_another_process(tmp_path, 2, run_hash) == run_hash
    reader = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(reader.stdout.splitlines()[-1]) == {
        "hash": run_hash,
        "config": {"steps": 2, "staleness": {"max": 4}},
        "reward/mean": [[1, 2], [0.1, 0.2]],
        "idle": [[1, 2], [0.25, 0.25]],
        "has_nan": False,
        "staleness": [[5, 0, 2], [5, 0, 2]],
    }


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
