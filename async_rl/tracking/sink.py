"""The sink: where every metric of a run ends, in one process.

One writer, since Aim locks a run to one; aggregated and a few times a second, since a point costs it a third
of a millisecond. Owns which trackers there are; knows not where records come from. metrics.jsonl is the record
of a run, so a failure to write it is an error; Aim is for looking, and a run goes on without it.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from async_rl.tracking.aim_tracker import AimTracker
from async_rl.tracking.jsonl_tracker import JsonlTracker
from async_rl.tracking.record import Record, Tracker

logger = logging.getLogger(__name__)


class MetricsSink:
    """Writes records to metrics.jsonl and, if there is a repository, to Aim."""

    def __init__(
        self,
        *,
        metrics: Path,
        aim_repo: Path | None,
        name: str,
        params: Mapping[str, object],
        run_hash: str | None,
    ) -> None:
        self._trackers: list[Tracker] = [JsonlTracker(metrics)]
        self._run_hash: str | None = None
        if aim_repo is not None:
            try:
                aim_tracker = AimTracker(aim_repo, name=name, params=params, run_hash=run_hash)
            except Exception:
                logger.exception("Aim cannot write to %s: this run has no dashboard, only %s", aim_repo, metrics)
                return
            self._run_hash = aim_tracker.run_hash
            self._trackers.append(aim_tracker)

    def run_hash(self) -> str | None:
        """Aim's name of the run; None without Aim, or where Aim could not be opened."""
        return self._run_hash

    def write(self, records: Sequence[Record]) -> None:
        """To every tracker."""
        for tracker in self._trackers:
            tracker.write(records)

    def close(self) -> None:
        """Everything that was written can be read afterwards."""
        for tracker in self._trackers:
            tracker.close()
