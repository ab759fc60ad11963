"""A full disk is the user's to mend, whoever meets it."""

from pathlib import Path

import pytest

from async_rl.disk import is_full, writing
from async_rl.errors import ResourceError
from async_rl.tracking.jsonl_tracker import JsonlTracker
from async_rl.tracking.record import Record
from async_rl.trained_log import TrainedLog
from tests.async_rl.groups import make_group

FULL = Path("/dev/full")


def test_a_full_disk_is_named_with_the_place_and_the_remedy() -> None:
    with pytest.raises(ResourceError) as caught, writing("a poem", FULL), FULL.open("wb", buffering=0) as file:
        file.write(b"roses")
    assert caught.value.problem == "cannot write a poem: No space left on device"
    assert caught.value.place == "/dev/full"
    assert "--resume auto" in caught.value.remedy


def test_metrics_and_the_log_of_batches_refuse_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to(FULL)
    (tmp_path / "trained.jsonl").symlink_to(FULL)
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    with pytest.raises(ResourceError, match="cannot write metrics"):
        tracker.write([Record(step=0, time_s=0.0, scalars={"loss": 1.0})])
    with pytest.raises(ResourceError, match="cannot write what was trained"):
        TrainedLog(tmp_path / "trained.jsonl").append(0, [make_group(1)])


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), writing("a poem", FULL):
        raise KeyError


def test_a_disk_without_room_is_full(tmp_path: Path) -> None:
    assert not is_full(tmp_path)
    assert is_full(Path("/proc"))
