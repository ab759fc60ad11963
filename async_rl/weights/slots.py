"""Slot files: named, preallocated, locked blocks of shared memory that hold one published version each.

Owns their names, header, allocation, liveness and removal. Knows nothing of tensors or manifests.

A slot is a file of tmpfs, `async-rl.RUN.PUBLISHER.NUMBER`: a header of one page, then the payload.
Its publisher holds an advisory lock (flock) on it for as long as it lives, which is how others tell a
slot in use from one that a killed process left behind, across containers that share the memory but not
the process table. Names are never used twice, so a reader never mistakes one life of a learner for another.

The header is a seqlock: `begun` is written before the payload and `finished` after it, both with the
publish generation. A reader takes the payload only if both carry the generation that it was told, before
and after its copy. The stores are not fenced; checksums, verified after the copy, make it safe on any machine.
"""

import errno
import fcntl
import mmap
import os
import re
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from async_rl.errors import ResourceError, WeightsError

SHARED_MEMORY = Path("/dev/shm")
NUM_SLOTS = 2
"""Versions that lie in shared memory at once, unless a publisher is told otherwise."""
HEADER_BYTES = 4096

_MAGIC = b"ARLSLOT1"
_HEADER = struct.Struct("<8sQQQ")
_BEGUN_AT = 8
_FINISHED_AT = 16
_GENERATION = struct.Struct("<Q")
_NAME = re.compile(r"async-rl\.(?P<run_id>[\w.-]+)\.[0-9a-f]{16}\.\d+")
_RUN_ID = re.compile(r"[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class SlotHeader:
    """What a slot says of itself."""

    begun: int
    """Generation whose writing has begun; 0 before the first."""
    finished: int
    """Generation whose writing has finished."""
    payload_bytes: int

    def holds(self, generation: int) -> bool:
        """Whether the payload is that generation, whole."""
        return self.begun == self.finished == generation


class Slot:
    """A slot as its publisher holds it: mapped, and locked until `close` or the end of the process."""

    def __init__(self, folder: Path, run_id: str, publisher: str, number: int, payload_bytes: int) -> None:
        """Creates the file with all its memory; raises `OSError` where that is not to be had."""
        assert _RUN_ID.fullmatch(run_id), run_id
        self.path = folder / f"async-rl.{run_id}.{publisher}.{number}"
        self._fd = _create_locked(self.path)
        try:
            # A sparse file would be mapped just as well, and end the process by SIGBUS once the memory is full.
            os.posix_fallocate(self._fd, 0, HEADER_BYTES + payload_bytes)
            # Populating maps the pages now, so that no publish pays for their first touch.
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._map = mmap.mmap(self._fd, HEADER_BYTES + payload_bytes, flags=flags)
        except BaseException:
            self._unlink()
            raise
        _HEADER.pack_into(self._map, 0, _MAGIC, 0, 0, payload_bytes)
        self.payload = memoryview(self._map)[HEADER_BYTES:]

    def begin(self, generation: int) -> None:
        """From here on the payload is no whole version."""
        _GENERATION.pack_into(self._map, _BEGUN_AT, generation)

    def finish(self, generation: int) -> None:
        """The payload is whole."""
        _GENERATION.pack_into(self._map, _FINISHED_AT, generation)

    def close(self) -> None:
        """Removes the file; its memory goes back when the last mapping and reader are gone."""
        self.payload = memoryview(b"")
        self._unlink()

    def _unlink(self) -> None:
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def create_slots(folder: Path, run_id: str, count: int, payload_bytes: int) -> list[Slot]:
    """All the slots of one publisher, or none of them and a `ResourceError`."""
    publisher = secrets.token_hex(8)
    needed_bytes = count * (HEADER_BYTES + payload_bytes)
    free_bytes = _free_bytes(folder)
    slots: list[Slot] = []
    try:
        for number in range(count):
            slots.append(Slot(folder, run_id, publisher, number, payload_bytes))
    except OSError as error:
        for slot in slots:
            slot.close()
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
            raise
        raise ResourceError(
            f"{folder} has {_mib(free_bytes)} free; published weights need {_mib(needed_bytes)} "
            f"({count} slots of {_mib(payload_bytes)})",
            place=str(folder),
            remedy=f"give it more memory (docker run --shm-size=…, mount -o remount,size=… {folder}), "
            "or remove what fills it",
        ) from error
    return slots


def read_header(fd: int, location: str) -> SlotHeader:
    """The header of an open slot file; `WeightsError` where it is none."""
    raw = os.pread(fd, _HEADER.size, 0)
    if len(raw) < _HEADER.size or not raw.startswith(_MAGIC):
        raise WeightsError(f"{location} is no slot of published weights")
    _, begun, finished, payload_bytes = _HEADER.unpack(raw)
    return SlotHeader(begun=begun, finished=finished, payload_bytes=payload_bytes)


def remove_leftovers(run_id: str, folder: Path = SHARED_MEMORY) -> list[str]:
    """Removes every slot of a run, in use or not, and returns their paths: for when all its processes have ended."""
    found = [path for path in _slots_in(folder) if _run_of(path) == run_id]
    for path in found:
        path.unlink(missing_ok=True)
    return [str(path) for path in found]


def remove_stale(folder: Path = SHARED_MEMORY) -> list[str]:
    """Removes the slots, of any run, whose publisher is dead, and returns their paths."""
    return [str(path) for path in _slots_in(folder) if _remove_if_unlocked(path)]


def _slots_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _run_of(path) is not None)


def _run_of(path: Path) -> str | None:
    match = _NAME.fullmatch(path.name)
    return match["run_id"] if match else None


def _remove_if_unlocked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except (BlockingIOError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def _create_locked(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Between creation and lock, `remove_stale` of another run may take the file for a dead one's.
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def _free_bytes(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
