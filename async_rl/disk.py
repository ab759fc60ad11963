"""What a disk refuses, as a mistake that the user can mend. Owns the words."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from async_rl.errors import ResourceError

RUN_REMEDY = "free some disk, or choose another runs_dir; --resume auto goes on from the last checkpoint"

FULL_BYTES = 1 << 20


def is_full(folder: Path) -> bool:
    """Whether a folder's disk has less than a mebibyte left: what a write that failed for space leaves."""
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize < FULL_BYTES


@contextmanager
def writing(what: str, path: Path, *, remedy: str = RUN_REMEDY) -> Iterator[None]:
    """Around whatever writes `what` to `path`.

    Raises:
        ResourceError: the disk is full, or the place cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write {what}: {error.strerror or error}",
            place=str(path),
            remedy=remedy,
        ) from error
