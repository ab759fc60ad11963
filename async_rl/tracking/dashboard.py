"""The dashboard: Aim's own server over a repository, with our panels already in it.

Owns the server's process, its address (this machine only, since Aim has no login) and the panels. Starts no run
and reads no metrics.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from async_rl.errors import ResourceError

HOST = "127.0.0.1"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Panels:
    """One page of the dashboard: curves of these metrics, one chart each."""

    name: str
    description: str
    metrics: tuple[str, ...]


PANELS = (
    Panels(
        name="async-rl: learning",
        description="What the policy earns, and how far it moves.",
        metrics=("reward/mean", "evaluation/reward", "evaluation/greedy", "loss", "entropy", "grad_norm"),
    ),
    Panels(
        name="async-rl: staleness and correction",
        description="How old trained tokens are, and what importance weights make of them.",
        metrics=(
            "staleness/mean",
            "staleness/p95",
            "staleness/max",
            "importance/mean",
            "importance/truncated_share",
            "importance/ess",
            "mu_prox/k3",
            "mu_prox/max_abs",
        ),
    ),
    Panels(
        name="async-rl: throughput and lag",
        description="Who is fast, who waits, and how long new weights take.",
        metrics=(
            "tokens_per_s",
            "idle_share",
            "ledger/leased",
            "ledger/delivered",
            "ledger/queued",
            "weights/pause_s",
            "weights/active_s",
            "learner/step_s",
        ),
    ),
)


class Dashboard:
    """A running server; `close` ends it."""

    def __init__(self, repo: Path, port: int) -> None:
        """Starts the server and puts the panels in.

        Raises:
            ResourceError: no repository there, the port is taken, or the server does not start.
        """
        check_repo(repo)
        check_port(port)
        self.url = f"http://{HOST}:{port}"
        self._is_closed = False
        # Not `-m aim`: aim has no __main__.
        command = [sys.executable, "-c", "from aim.cli.cli import cli_entry_point as main; main()"]
        # A file, not a pipe: a pipe that nobody reads fills, and then the server stands still.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
            self._server = subprocess.Popen(
                [*command, "up", "--repo", str(repo), "--host", HOST, "--port", str(port), "--workers", "1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                # Aim starts uvicorn, and ends without ending it: what ends the server has to end a group.
                process_group=0,
            )
            try:
                self._await_start(words)
                install_panels(self.url)
            except BaseException:
                self.close()
                raise

    def _await_start(self, words: IO[str]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._server.poll() is not None:
                words.seek(0)
                said = words.read().strip().splitlines()
                raise _not_started(said[-1] if said else "it said nothing")
            try:
                request(self.url, "GET", "/api/projects/")
                return
            except OSError:
                time.sleep(0.2)
        raise _not_started(f"it did not answer within {START_TIMEOUT_S:g} s")

    def wait(self) -> None:
        """Until the server ends."""
        self._server.wait()

    def close(self) -> None:
        """Ends the server and whatever it started. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for sent in (signal.SIGTERM, signal.SIGKILL):
            deadline_s = time.monotonic() + STOP_TIMEOUT_S
            while self._signal(sent) and time.monotonic() < deadline_s:
                time.sleep(0.05)

    def _signal(self, number: signal.Signals) -> bool:
        """False where no process of the server is left."""
        # Collected first: a process that has ended but was not waited for still counts as one of its group.
        self._server.poll()
        try:
            os.killpg(self._server.pid, number)
        except ProcessLookupError:
            return False
        return True


def _not_started(why: str) -> ResourceError:
    return ResourceError(
        f"Aim's server did not start: {why}", place="async-rl dashboard", remedy="try another --port, or look at --repo"
    )


def check_repo(repo: Path) -> None:
    """Raises a `ResourceError` where no run has been tracked yet."""
    if not (repo / ".aim").is_dir():
        raise ResourceError(
            f"no Aim repository in {repo}",
            place="--repo",
            remedy="give the runs_dir of a run (or its tracking.aim_repo), after a run with tracking.aim=true",
        )


def check_port(port: int) -> None:
    """Raises a `ResourceError` where the port is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ResourceError(
                f"port {port} cannot be used: {error.strerror}", place="--port", remedy="choose another port"
            ) from error


def request(url: str, method: str, path: str, body: object = None) -> object:
    """One call of Aim's API; returns the decoded answer."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "X-Timezone-Offset": "0"}
    call = urllib.request.Request(url + path, data=content, method=method, headers=headers)
    with urllib.request.urlopen(call, timeout=30) as answer:
        return json.loads(answer.read())


def install_panels(url: str, panels: Sequence[Panels] = PANELS) -> None:
    """Makes each page that is not there yet."""
    existing = request(url, "GET", "/api/dashboards/")
    assert isinstance(existing, list)
    names = {page["name"] for page in existing}
    for page in panels:
        if page.name in names:
            continue
        app = request(url, "POST", "/api/apps/", {"type": "metrics", "state": explorer_state(page)})
        assert isinstance(app, dict)
        request(
            url,
            "POST",
            "/api/dashboards/",
            {"name": page.name, "description": page.description, "app_id": app["id"]},
        )


def explorer_state(page: Panels) -> dict[str, object]:
    """Aim's metrics explorer with one chart a metric, one colour a run, one stroke a subject."""
    options = [
        {
            "label": name,
            "group": name,
            "color": "#3E72E7",
            "type": "metrics",
            "value": {"option_name": name, "context": None},
        }
        for name in page.metrics
    ]
    return {
        "select": {"options": options, "query": "", "advancedMode": False, "advancedQuery": ""},
        "grouping": {
            "color": ["run.hash"],
            "stroke": ["context.subject"],
            "chart": ["name"],
            "reverseMode": {"color": False, "stroke": False, "chart": False},
            "isApplied": {"color": True, "stroke": True, "chart": True},
            "persistence": {"color": False, "stroke": False},
            "seed": {"color": 10, "stroke": 10},
            "paletteIndex": 0,
        },
    }
