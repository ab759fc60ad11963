"""trained.jsonl: which groups each batch trained, for audits.

    {"version": 12, "group_ids": [96, 98, …], "prompt_ids": [3071, 12, …], "oldest_versions": [11, 11, …]}

A line is the batch that took the learner from `version` to `version + 1`. Owns the file; after a restart from a
checkpoint, lines of the history that was lost are taken out, so each trained group stands in it once.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from async_rl.disk import writing
from async_rl.protocol import TrajectoryGroup


class TrainedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    version: int
    group_ids: list[int]
    prompt_ids: list[int]
    oldest_versions: list[int]


@dataclass(frozen=True)
class TrainedLog:
    """A run's trained.jsonl."""

    path: Path

    def append(self, version: int, groups: Sequence[TrajectoryGroup]) -> None:
        """The batch of `version` is trained.

        Raises:
            ResourceError: the disk is full, or the folder cannot be written.
        """
        line = TrainedBatch(
            version=version,
            group_ids=[g.group_id for g in groups],
            prompt_ids=[g.prompt_id for g in groups],
            oldest_versions=[g.oldest_version for g in groups],
        )
        with writing("what was trained", self.path), self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def read(self) -> list[TrainedBatch]:
        """All whole lines; a process that was killed may have left half of one."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=TrainedBatch) for line in lines]

    def forget_from(self, version: int) -> None:
        """Takes out the batches of `version` and later ones."""
        kept = [line for line in self.read() if line.version < version]
        beside = self.path.with_suffix(".writing")
        with writing("what was trained", self.path):
            beside.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in kept))
            os.replace(beside, self.path)
