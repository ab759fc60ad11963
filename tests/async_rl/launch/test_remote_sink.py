"""What becomes of records whose writer fails: errors as Ray raises them, awaitables in the place of its calls."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayTaskError

from async_rl.errors import ResourceError
from async_rl.launch.remote_sink import RemoteSink
from async_rl.tracking.jsonl_tracker import JsonlTracker
from async_rl.tracking.record import Record

FULL = ResourceError("cannot write metrics: disk full", place="metrics.jsonl", remedy="free some disk")


class Tracker:
    """Writes as the process does, until it fails at the record of one step."""

    def __init__(self, metrics: Path, *, fails_at: int | None = None, error: Exception | None = None) -> None:
        self._file = JsonlTracker(metrics)
        self._fails_at = fails_at
        self._error = error or ActorDiedError()
        self._has_failed = False
        self.write = self.close = self.open = self

    async def remote(self, records: Sequence[Record] = (), **options: object) -> str:
        self._has_failed |= any(record.step == self._fails_at for record in records)
        if self._has_failed:
            raise self._error
        self._file.write(records)
        return "hash"


def sink_of(tracker: Tracker, metrics: Path) -> RemoteSink:
    return RemoteSink(cast(ActorHandle, tracker), metrics)


def steps(metrics: Path) -> list[int]:
    return [json.loads(line)["step"] for line in metrics.read_text().splitlines()]


async def test_a_run_goes_on_with_every_record_when_the_tracker_dies(tmp_path: Path) -> None:
    metrics, told = tmp_path / "metrics.jsonl", list[str]()
    sink = sink_of(Tracker(metrics, fails_at=3), metrics)
    assert await sink.open(aim_repo=None, name="it", params={}, run_hash=None) == "hash"
    following = asyncio.create_task(sink.follow(told.append))
    for step in range(6):
        sink.write([Record(step=step, time_s=0.0)])
        if step % 2:
            await asyncio.sleep(0.01)
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    sink.write([Record(step=6, time_s=0.0)])
    await sink.close()
    assert steps(metrics) == [0, 1, 2, 3, 4, 5, 6]
    assert told == ["The tracker failed: metrics go on in metrics.jsonl alone, without Aim (why: logs/tracker.log)."]


async def test_a_tracker_that_dies_at_the_start_or_at_the_end_costs_no_record(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    tracker = Tracker(metrics)
    tracker._has_failed = True
    sink = sink_of(tracker, metrics)
    assert await sink.open(aim_repo=tmp_path, name="it", params={}, run_hash=None) is None
    sink.write([Record(step=0, time_s=0.0)])
    await sink.close()
    at_the_end = sink_of(Tracker(metrics, fails_at=1), metrics)
    at_the_end.write([Record(step=1, time_s=0.0)])
    await at_the_end.close()
    assert steps(metrics) == [0, 1]


async def test_a_full_disk_is_not_worked_around(tmp_path: Path) -> None:
    error = RayTaskError("write", "traceback", FULL)
    sink = sink_of(Tracker(tmp_path / "metrics.jsonl", fails_at=0, error=error), tmp_path / "metrics.jsonl")
    sink.write([Record(step=0, time_s=0.0)])
    with pytest.raises(ResourceError, match="disk full"):
        await sink.follow(print)
    await sink.close()
