"""The journal: delivered groups on disk, until a checkpoint covers the batch that trained them.

    journal/0000000042.group      checksum (8 bytes, xxh3_64, little endian), then the group as msgpack

Owns the files. A group is written beside and renamed, so a process that is killed leaves a whole file or
none; files are not synced, so a power cut may tear the newest, which `load` sees by its checksum, leaves out
and says. A later delivery of the same group (its first was requeued) takes the earlier's place.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from async_rl.disk import writing
from async_rl.errors import ResourceError
from async_rl.history import mirror_versions
from async_rl.protocol import TrajectoryGroup

logger = logging.getLogger(__name__)

SUFFIX = ".group"
UNFINISHED = ".writing"


@dataclass(frozen=True)
class Journal:
    """A run's `journal` folder."""

    folder: Path

    def append(self, group: TrajectoryGroup) -> None:
        """Keeps a group; it survives the death of this process from the moment this returns.

        Raises:
            ResourceError: the disk is full, or the folder cannot be written.
        """
        payload = msgspec.msgpack.encode(group)
        path = self._path(group.group_id)
        beside = path.with_suffix(UNFINISHED)
        with writing("a delivered group", path):
            beside.write_bytes(xxhash.xxh3_64_intdigest(payload).to_bytes(8, "little") + payload)
            os.replace(beside, path)

    def remove(self, group_ids: Iterable[int]) -> None:
        """Forgets groups; those that it does not have are passed over."""
        for group_id in group_ids:
            self._path(group_id).unlink(missing_ok=True)

    def load(self, version: int) -> list[TrajectoryGroup]:
        """All groups, in the order of their ids, restated for a history that goes on from `version`.

        They are restated in their files, too: at a later restart, versions that were lost by this one must not pass for
        those of the same numbers that came after it. Torn files are removed and named in a warning.

        Raises:
            ResourceError: a file is whole, but of another version of async-rl; or it cannot be written.
        """
        for unfinished in self.folder.glob(f"*{UNFINISHED}"):
            unfinished.unlink()
        groups = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            group = _read(path)
            if group is None:
                logger.warning("the journal's %s is torn: its group will be generated again", path.name)
                path.unlink()
            else:
                groups.append(self._restate(group, version))
        return groups

    def _restate(self, group: TrajectoryGroup, version: int) -> TrajectoryGroup:
        restated = mirror_versions(group, version)
        if restated is not group:
            self.append(restated)
        return restated

    def _path(self, group_id: int) -> Path:
        return self.folder / f"{group_id:010d}{SUFFIX}"


def _read(path: Path) -> TrajectoryGroup | None:
    content = path.read_bytes()
    payload = content[8:]
    if xxhash.xxh3_64_intdigest(payload) != int.from_bytes(content[:8], "little"):
        return None
    try:
        return msgspec.msgpack.decode(payload, type=TrajectoryGroup)
    except msgspec.DecodeError as error:
        raise ResourceError(
            f"a delivered group cannot be read: {error}",
            place=str(path),
            remedy="resume with the version of async-rl that wrote it, or remove the file: its prompt is sampled again",
        ) from error
