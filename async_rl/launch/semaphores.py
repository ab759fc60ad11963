"""Semaphores in shared memory: named after the run, so that whoever outlives its processes can remove them.

Python unlinks them at a process's orderly end alone, and Ray kills what it ends. Owns the names
`/dev/shm/sem.async-rl-RUN_ID-…`, with a run id that ends in the driver's process id.
"""

import multiprocessing
from pathlib import Path

from async_rl.weights.slots import SHARED_MEMORY

_PREFIX = "async-rl"


def name_semaphores(run_id: str) -> None:
    """Names all semaphores that this process and its children make from now on."""
    # Python has no public way; children inherit it.
    config: dict[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["semprefix"] = f"/{_PREFIX}-{run_id}"


def remove_semaphores(run_id: str, folder: Path = SHARED_MEMORY) -> None:
    """Removes a run's semaphores: for when all its processes have ended."""
    for path in folder.glob(f"sem.{_PREFIX}-{run_id}-*"):
        path.unlink(missing_ok=True)


def remove_stale_semaphores(folder: Path = SHARED_MEMORY) -> None:
    """Removes those of runs whose driver is dead."""
    for path in folder.glob(f"sem.{_PREFIX}-*-*-*"):
        pid = path.name.split("-")[-2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
