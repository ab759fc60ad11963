"""Slot files: how a dead publisher's memory is told from a live one's, and what a full folder says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from async_rl.errors import ResourceError
from async_rl.weights.slots import SHARED_MEMORY, create_slots, remove_leftovers, remove_stale

HOLD_SLOTS = """
import sys, time
from pathlib import Path
from async_rl.weights.slots import create_slots
slots = create_slots(Path(sys.argv[1]), sys.argv[2], 2, 4096)
print("ready", flush=True)
time.sleep(60)
"""

FILL = """
import sys
from pathlib import Path
from async_rl.errors import ResourceError
from async_rl.weights.slots import create_slots
folder = Path(sys.argv[1])
try:
    create_slots(folder, 'run', 2, 3 * 2**19)
except ResourceError as error:
    print(error.problem)
    print(list(folder.iterdir()))
"""


def test_stale_slots_are_those_whose_publisher_was_killed(tmp_path: Path) -> None:
    alive = create_slots(tmp_path, "alive", 2, 4096)
    with _publisher_process(tmp_path, "killed") as process:
        assert remove_stale(tmp_path) == []
        process.send_signal(signal.SIGKILL)
    removed = remove_stale(tmp_path)
    assert len(removed) == 2 and all("async-rl.killed." in path for path in removed)
    assert all(slot.path.exists() for slot in alive)


def test_leftovers_are_removed_by_exact_run_even_while_in_use(tmp_path: Path) -> None:
    create_slots(tmp_path, "run", 2, 64)
    other = create_slots(tmp_path, "run.2", 2, 64)
    stranger = tmp_path / "async-rl.notes"
    stranger.touch()
    assert len(remove_leftovers("run", tmp_path)) == 2
    assert remove_leftovers("run", tmp_path) == []
    assert sorted(tmp_path.iterdir()) == sorted([stranger, *(slot.path for slot in other)])


def test_closing_removes_the_file_and_may_happen_twice(tmp_path: Path) -> None:
    slots = create_slots(tmp_path, "run", 2, 64)
    for slot in [*slots, *slots]:
        slot.close()
    assert list(tmp_path.iterdir()) == []


def test_two_publishers_of_one_run_never_share_a_slot(tmp_path: Path) -> None:
    first = create_slots(tmp_path, "run", 2, 64)
    second = create_slots(tmp_path, "run", 2, 64)
    assert len({slot.path for slot in [*first, *second]}) == 4


def test_a_full_folder_is_an_error_that_names_free_and_needed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # In a mount namespace of its own, the test may make a shared memory of 2 MiB. One slot fits, two do not.
    script = 'mount -t tmpfs -o size=2m tmpfs $1 && exec $2 -c "$3" $1'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if subprocess.run([*command, str(tmp_path), "true", ""], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a mount namespace")
    done = subprocess.run([*command, str(tmp_path), sys.executable, FILL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{tmp_path} has 2.0 MiB free; published weights need 3.0 MiB (2 slots of 1.5 MiB)",
        "[]",
    ]


def test_a_request_beyond_the_whole_folder_is_refused_at_once() -> None:
    space = os.statvfs(SHARED_MEMORY)
    with pytest.raises(ResourceError, match=r"published weights need") as caught:
        create_slots(SHARED_MEMORY, "test-beyond", 2, 2 * space.f_blocks * space.f_frsize)
    assert caught.value.place == "/dev/shm" and "--shm-size" in caught.value.remedy
    assert remove_leftovers("test-beyond") == []


class _publisher_process:
    """A process that holds two slots until it is killed."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._arguments = [sys.executable, "-c", HOLD_SLOTS, str(folder), run_id]

    def __enter__(self) -> "subprocess.Popen[str]":
        self._process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
