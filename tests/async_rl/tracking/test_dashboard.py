"""The dashboard over a real repository: what the sink tracked is there, and our pages are made once."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from async_rl.errors import ResourceError
from async_rl.tracking.dashboard import PANELS, Dashboard, Panels, explorer_state, install_panels, request

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


def track_in_another_process(folder: Path, step: int, run_hash: str | None) -> str:
    """As every start of a run does."""
    arguments = [str(folder), str(step), *([run_hash] if run_hash else [])]
    writer = subprocess.run(
        [sys.executable, "-c", WRITER, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return writer.stdout.splitlines()[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.integration
def test_a_run_and_its_resumption_are_one_curve_and_our_pages_are_made_once(tmp_path: Path) -> None:
    run_hash = track_in_another_process(tmp_path, 1, None)
    assert track_in_another_process(tmp_path, 2, run_hash) == run_hash
    port = free_port()
    dashboard = Dashboard(tmp_path, port)
    try:
        info = request(dashboard.url, "GET", f"/api/runs/{run_hash}/info/")
        assert isinstance(info, dict)
        assert info["params"]["config"] == {"steps": 2, "staleness": {"max": 4}}
        traces = {trace["name"] for trace in info["traces"]["metric"]}
        assert traces == {"reward/mean", "idle"}, "Aim draws no NaN"
        wanted = [
            {"name": "reward/mean", "context": {}},
            {"name": "idle", "context": {"subject": "generator-0"}},
        ]
        curves = request(dashboard.url, "POST", f"/api/runs/{run_hash}/metric/get-batch/", wanted)
        assert isinstance(curves, list)
        assert [(c["name"], c["values"], c["iters"]) for c in curves] == [
            ("reward/mean", [0.1, 0.2], [1, 2]),
            ("idle", [0.25, 0.25], [1, 2]),
        ]
        install_panels(dashboard.url)
        pages = request(dashboard.url, "GET", "/api/dashboards/")
        assert isinstance(pages, list)
        assert sorted(p["name"] for p in pages) == sorted(p.name for p in PANELS)
    finally:
        dashboard.close()
        dashboard.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))


def test_a_page_has_one_chart_a_metric_and_tells_runs_and_subjects_apart() -> None:
    state = explorer_state(Panels(name="page", description="", metrics=("loss", "idle_share")))
    assert isinstance(state["grouping"], dict) and isinstance(state["select"], dict)
    # Names of Aim's own: others are taken without a word, and all curves land in one chart.
    assert state["grouping"]["chart"] == ["name"]
    assert state["grouping"]["color"] == ["run.hash"]
    assert state["grouping"]["stroke"] == ["context.subject"]
    assert [option["value"]["option_name"] for option in state["select"]["options"]] == ["loss", "idle_share"]


def test_no_repository_and_a_taken_port_are_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"(?s)no Aim repository.*--repo.*tracking\.aim=true"):
        Dashboard(tmp_path, free_port())
    (tmp_path / ".aim").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ResourceError, match=r"(?s)port \d+ cannot be used.*--port"):
            Dashboard(tmp_path, int(taken.getsockname()[1]))
