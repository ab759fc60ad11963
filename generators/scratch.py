"""A short-named folder for sockets and other files of one process, gone with it.

Owns the folders under /tmp and the removal of those whose process was killed before it could. A lock tells them from
those in use: the kernel gives it back when its process ends, whatever the end was.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

# Not the TMPDIR: the path of a socket has at most 107 bytes.
ROOT = Path("/tmp")
_PREFIX = "async-rl-"
_LOCK = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, removed at the end; leftovers of this user's killed processes go first."""
    _remove_leftovers()
    with TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=ROOT) as name:
        folder = Path(name)
        new = folder / "new"
        with new.open("x") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Seen by others only once it is held.
            new.rename(folder / _LOCK)
            yield folder


def _remove_leftovers() -> None:
    for lock_path in ROOT.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with lock_path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.parent)
        except OSError:
            # In use, another user's, or another process removes it at this moment.
            continue
