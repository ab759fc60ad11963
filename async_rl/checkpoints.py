"""The checkpoints of a run: written beside, renamed when whole, the newest and the best few kept.

    checkpoints/.writing-00000012/learner/                 the learner's part, in the making
    checkpoints/00000012/{learner/, …, manifest.json,      complete
                          loop.json, score.json}           with a score, once there is one
    checkpoints/best → 00000008                            of those that have one
    checkpoints/damaged-00000016/                          set aside: nobody goes on from it

Owns the folder and the part of whoever trains in a loop (`TrainingState`). What the learner writes it does not look
into.
"""

import logging
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from async_rl.checksums import Damage
from async_rl.config.loop import CheckpointConfig
from async_rl.disk import writing
from async_rl.errors import DamagedCheckpoint, ResourceError
from async_rl.ledger import LedgerSnapshot

logger = logging.getLogger(__name__)

LOOP_FILE = "loop.json"
SCORE_FILE = "score.json"
BEST = "best"


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


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How good a checkpoint's model is."""

    score: float
    """Finite; more is better."""


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
    keep_best: int = 0

    @classmethod
    def of(cls, folder: Path, config: CheckpointConfig) -> "Checkpoints":
        """As the config keeps them."""
        return cls(folder, config.keep, config.keep_best)

    def beside(self, version: int) -> Path:
        """Where the learner writes its part of a checkpoint: no checkpoint yet."""
        return self.folder / f".writing-{version:08d}"

    def complete(
        self, written: Path, state: TrainingState, *, score: float | None = None, spared: Collection[int] = ()
    ) -> Path:
        """Adds the loop's part to what the learner wrote in `written`, renames it into place, drops the oldest.

        A crash before the rename leaves a `.writing-*` folder, which is no checkpoint.

        Args:
            written: see `beside`.
            state: the loop's part.
            score: see `score`, if it is known already.
            spared: versions that are not dropped, since their score is still to come.

        Raises:
            ResourceError: the disk is full, or the folder cannot be written.
        """
        target = self._path(state.version)
        with writing("a checkpoint", target):
            (written / LOOP_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
            if target.exists():
                shutil.rmtree(target)
            os.replace(written, target)
            if score is not None:
                self.score(state.version, score)
            best = self.best()[: self.keep_best]
            for old in self.versions()[: -self.keep]:
                if old not in spared and old not in best:
                    shutil.rmtree(self._path(old))
        return target

    def score(self, version: int, score: float) -> None:
        """Says how good the model of a complete checkpoint is; more is better.

        Raises:
            ResourceError: the folder cannot be written.
        """
        if not self.keep_best:
            return
        path = self._path(version) / SCORE_FILE
        with writing("a checkpoint's score", path):
            path.write_bytes(msgspec.json.encode(Score(score=score)))
            self._point_at_best()

    def best(self) -> list[int]:
        """Versions that have a score, the best first, of equal ones the newer."""
        scores = {version: self._score(version) for version in self.versions()}
        found = [(score, version) for version, score in scores.items() if score is not None]
        return [version for _, version in sorted(found, reverse=True)]

    def _point_at_best(self) -> None:
        best, link = self.best(), self.folder / f".{BEST}"
        link.unlink(missing_ok=True)
        if best:
            link.symlink_to(self._path(best[0]).name)
            os.replace(link, self.folder / BEST)
        else:
            (self.folder / BEST).unlink(missing_ok=True)

    def _score(self, version: int) -> float | None:
        path = self._path(version) / SCORE_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=Score).score
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            logger.warning("%s is torn: its checkpoint counts as one without a score", path)
            return None

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

    def pass_over(self, checkpoint: Path) -> Path | None:
        """Sets a damaged checkpoint aside, where there is an older one; returns where it lies now."""
        version = int(checkpoint.name)
        if not any(older < version for older in self.versions()):
            return None
        aside, number = self.folder / f"damaged-{checkpoint.name}", 1
        while aside.exists():
            number += 1
            aside = self.folder / f"damaged-{checkpoint.name}-{number}"
        with writing("the checkpoints", self.folder):
            os.replace(self._path(version), aside)
            self._point_at_best()
        return aside

    def refusal(self, checkpoint: Path, damage: Damage) -> DamagedCheckpoint:
        """The error of whoever finds that a checkpoint is damaged."""
        older = [version for version in self.versions() if version < int(checkpoint.resolve().name)]
        return DamagedCheckpoint(
            f"the checkpoint {checkpoint} is damaged: {damage}",
            place=str(checkpoint / damage.file),
            remedy=f"go on from an older checkpoint: --resume auto takes version {older[-1]}"
            if older
            else "there is no older checkpoint: begin anew with --resume never",
        )

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
