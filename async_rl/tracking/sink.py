"""The sink: where every metric of a run ends, in one process.

One writer, since Aim locks a run to one; aggregated and a few times a second, since a point costs it a third
of a millisecond. Owns which trackers there are; knows not where records come from.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from async_rl.tracking.aim_tracker import AimTracker
from async_rl.tracking.jsonl_tracker import JsonlTracker
from async_rl.tracking.record import Record, Tracker


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
            aim_tracker = AimTracker(aim_repo, name=name, params=params, run_hash=run_hash)
            self._run_hash = aim_tracker.run_hash
            self._trackers.append(aim_tracker)

    def run_hash(self) -> str | None:
        """Aim's name of the run; None without Aim."""
        return self._run_hash

    def write(self, records: Sequence[Record]) -> None:
        """To every tracker."""
        for tracker in self._trackers:
            tracker.write(records)

    def close(self) -> None:
        """Everything that was written can be read afterwards."""
        for tracker in self._trackers:
            tracker.close()
