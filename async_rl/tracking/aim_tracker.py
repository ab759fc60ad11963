"""Aim: curves and distributions of a run. The only module that imports aim.

The run's parameters are the resolved config; nothing of the machine or its environment is stored, since that
would put secrets into the repository of metrics. A record that Aim cannot take is logged and counted: a run
does not die of its dashboard.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import aim
import numpy as np

from async_rl.protocol import Histogram
from async_rl.tracking.record import Record

logger = logging.getLogger(__name__)


class AimTracker:
    """Writes one Aim run; a `Tracker`."""

    def __init__(self, repo: Path, *, name: str, params: Mapping[str, object], run_hash: str | None) -> None:
        """Opens `repo`, which is made if missing; with `run_hash` goes on drawing an earlier run."""
        repo.mkdir(parents=True, exist_ok=True)
        self._run = aim.Run(
            run_hash,
            repo=aim.Repo.from_path(str(repo), init=True),
            experiment=name,
            log_system_params=False,
            capture_terminal_logs=False,
            system_tracking_interval=None,
        )
        self._run.name = name
        self._run["config"] = dict(params)
        self.failures = 0
        """Records that Aim did not take."""

    @property
    def run_hash(self) -> str:
        """Aim's name of the run."""
        return str(self._run.hash)

    def write(self, records: Sequence[Record]) -> None:
        """Tracks every finite number and every histogram."""
        for record in records:
            try:
                self._track(record)
            except Exception:
                self.failures += 1
                # Said the 1st, 2nd, 4th, 8th… time: a full disk fails every record.
                if self.failures.bit_count() == 1:
                    logger.exception("Aim did not take a record of step %d (%d so far)", record.step, self.failures)

    def _track(self, record: Record) -> None:
        context = {"subject": record.subject} if record.subject else {}
        for name, value in record.scalars.items():
            if math.isfinite(value):
                self._run.track(value, name=name, step=record.step, context=context)
        for name, histogram in record.histograms.items():
            if sum(histogram.counts):
                self._run.track(to_distribution(histogram), name=name, step=record.step, context=context)

    def close(self) -> None:
        """Ends the run."""
        self._run.close()


def to_distribution(histogram: Histogram) -> aim.Distribution:
    """Aim's distribution has bins of one width over one range; counts of uneven bins are shared out by width."""
    edges = np.asarray(histogram.edges, np.float64)
    counts = np.asarray(histogram.counts, np.float64)
    num_bins = min(max(len(counts), 1), 512)
    even = np.linspace(edges[0], edges[-1], num_bins + 1)
    below = np.interp(even, edges, np.concatenate([[0.0], np.cumsum(counts)]))
    return aim.Distribution(hist=np.rint(np.diff(below)).astype(np.int64), bin_range=(edges[0], edges[-1]))
