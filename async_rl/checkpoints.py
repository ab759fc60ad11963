"""The checkpoints of a run: written beside, renamed when whole, the newest few kept.

    checkpoints/.writing-00000012/learner/     the learner's part, in the making
    checkpoints/00000012/{learner/, loop.json} complete

Owns the folder and the part of whoever trains in a loop (`TrainingState`). What the learner writes it does not look
into.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from async_rl.disk import writing
from async_rl.errors import ResourceError
from async_rl.ledger import LedgerSnapshot

LOOP_FILE = "loop.json"


class TrainingState(msgspec.Struct, frozen=True, kw_only=True):
    """The loop's part of a checkpoint."""

    version: int
    """Batches trained."""
    trained_tokens: int
    run_hash: str | None
    """Of the Aim run, so that a resumed run goes on drawing the same curves."""


class LoopState(TrainingState, frozen=True, kw_only=True):
    """Of reinforcement learning. The data cursor is `ledger.issued`: ids decide prompts."""

    ledger: LedgerSnapshot
    next_evaluation_id: int


class SftState(TrainingState, frozen=True, kw_only=True):
    """Of fine-tuning. The data cursor is the version: it decides the rows of a step."""

    skipped_in_a_row: int = 0
    best_step: int = 0
    """With the lowest validation loss so far; 0 before the first."""
    best_loss: float | None = None


_StateT = TypeVar("_StateT", bound=TrainingState)


BEGINNING = LoopState(
    version=0,
    ledger=LedgerSnapshot(issued=0, ended={}, live_failures={}),
    trained_tokens=0,
    next_evaluation_id=0,
    run_hash=None,
)
"""Where a run begins that has no checkpoint."""


@dataclass(frozen=True)
class Checkpoints:
    """A run's `checkpoints` folder."""

    folder: Path
    keep: int

    def beside(self, version: int) -> Path:
        """Where the learner writes its part of a checkpoint: no checkpoint yet."""
        return self.folder / f".writing-{version:08d}"

    def complete(self, written: Path, state: TrainingState) -> Path:
        """Adds the loop's part to what the learner wrote in `written`, renames it into place, drops the oldest.

        A crash before the rename leaves a `.writing-*` folder, which is no checkpoint.

        Raises:
            ResourceError: the disk is full, or the folder cannot be written.
        """
        target = self._path(state.version)
        with writing("a checkpoint", target):
            (written / LOOP_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
            if target.exists():
                shutil.rmtree(target)
            os.replace(written, target)
            for old in self.versions()[: -self.keep]:
                shutil.rmtree(self._path(old))
        return target

    def versions(self) -> list[int]:
        """Versions with a complete checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit() and (p / LOOP_FILE).is_file())

    @property
    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        versions = self.versions()
        return self._path(versions[-1]) if versions else None

    def last(self) -> tuple[Path, LoopState] | None:
        """The newest complete checkpoint and the loop's part of it.

        Raises:
            ResourceError: the loop file cannot be read.
        """
        folder = self.latest
        return None if folder is None else (folder, read_loop_state(folder))

    def remove_unfinished(self) -> None:
        """Removes what a crash left half-written."""
        for path in self.folder.glob(".writing-*"):
            shutil.rmtree(path)

    def _path(self, version: int) -> Path:
        return self.folder / f"{version:08d}"


def read_loop_state(checkpoint: Path) -> LoopState:
    """See `read_state`."""
    return read_state(checkpoint, LoopState)


def read_state(checkpoint: Path, kind: type[_StateT]) -> _StateT:
    """The loop's part of a checkpoint.

    Raises:
        ResourceError: the folder is no checkpoint, or its loop file cannot be read.
    """
    path = checkpoint / LOOP_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        why = f"it has no {LOOP_FILE}" if checkpoint.is_dir() else "there is no such folder"
        raise _no_checkpoint(checkpoint, why) from error
    except OSError as error:
        raise _no_checkpoint(checkpoint, f"{LOOP_FILE} cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise _no_checkpoint(checkpoint, f"{LOOP_FILE} is damaged ({error})") from error


def _no_checkpoint(folder: Path, why: str) -> ResourceError:
    latest = Checkpoints(folder / "checkpoints", keep=1).latest
    return ResourceError(
        f"{folder} is not a checkpoint: {why}",
        place=str(folder),
        remedy=f"did you mean {latest}?" if latest else f"give a folder runs/NAME/checkpoints/VERSION with {LOOP_FILE}",
    )
