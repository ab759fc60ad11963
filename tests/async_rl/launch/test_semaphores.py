"""A run's semaphores bear its name, in its children too, and are gone when somebody cleans up after a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from async_rl.launch.semaphores import remove_semaphores, remove_stale_semaphores

PROGRAM = """
import multiprocessing, sys, time
from async_rl.launch.semaphores import name_semaphores
name_semaphores(sys.argv[1])
context = multiprocessing.get_context("spawn")
lock = context.Lock()
print("made", flush=True)
time.sleep(60)
"""
FOLDER = Path("/dev/shm")


def found(run_id: str) -> list[Path]:
    return list(FOLDER.glob(f"sem.*{run_id}*"))


@pytest.fixture
def killed_with_its_tracker() -> str:
    """A run whose process was killed, and with it what would have unlinked its semaphores."""
    run_id = f"test-{os.getpid()}"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, run_id], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert len(found(run_id)) == 1
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return run_id


def test_what_a_killed_process_left_is_removed_by_its_runs_name(killed_with_its_tracker: str) -> None:
    assert found(killed_with_its_tracker)
    remove_stale_semaphores()
    assert found(killed_with_its_tracker), "its driver (this process) lives"
    remove_semaphores("another-1")
    assert found(killed_with_its_tracker)
    remove_semaphores(killed_with_its_tracker)
    assert not found(killed_with_its_tracker)


def test_those_of_a_dead_driver_are_stale(tmp_path: Path) -> None:
    dead, alive = 2**22 + 1, os.getpid()
    for pid in (dead, alive):
        (tmp_path / f"sem.async-rl-my-run-{pid}-abc_1234").touch()
    (tmp_path / "sem.mp-abc_1234").touch()
    remove_stale_semaphores(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"sem.async-rl-my-run-{alive}-abc_1234", "sem.mp-abc_1234"]
