"""A run's folder: where everything that it writes lies.

    runs/NAME/  config.yaml  logs/  metrics.jsonl  aim_run  trained.jsonl  journal/  checkpoints/  model/  summary.json
    runs/latest → the run that was started last

Owns names and places; what is in the files is others' business.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from async_rl.config.part_rules import LATEST
from async_rl.errors import ResourceError


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def logs(self) -> Path:
        """One log file a process."""
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        """All metrics, a JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def aim_run(self) -> Path:
        """The hash of the run in its Aim repository; there is none without Aim."""
        return self.path / "aim_run"

    @property
    def trained(self) -> Path:
        """Which groups each batch trained."""
        return self.path / "trained.jsonl"

    @property
    def journal(self) -> Path:
        """Delivered groups that no checkpoint covers yet."""
        return self.path / "journal"

    @property
    def checkpoints(self) -> Path:
        """What the run can be resumed from."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The exported Hugging Face folder."""
        return self.path / "model"

    @property
    def summary(self) -> Path:
        """summary.json."""
        return self.path / "summary.json"

    def keep_aim_run(self, run_hash: str | None) -> None:
        """Writes Aim's name of the run, if it has one."""
        if run_hash is not None:
            self.aim_run.write_text(f"{run_hash}\n", encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes this process the only one that writes the run; its end, however it comes, unlocks.

        The lock lies beside the folder, since the folder of an earlier run is moved.

        Raises:
            ResourceError: a run of this name is going on, or the place cannot be written.
        """
        path = self.path.with_name(f".{self.path.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _not_writable(self.path, error) from error
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(
                f"a run is writing {self.path} now",
                place="runs_dir, name",
                remedy="wait for its end, or choose another `name=…`",
            ) from None

    def set_aside(self) -> Path | None:
        """Moves an earlier run of the same name out of the way; returns where to, None if there was none."""
        if not self.path.exists():
            return None
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.path.stat().st_mtime))
        aside = self.path.with_name(f"{self.path.name}.{stamp}")
        number = 1
        while aside.exists():
            number += 1
            aside = self.path.with_name(f"{self.path.name}.{stamp}-{number}")
        os.replace(self.path, aside)
        return aside

    def create(self, *parts: Path) -> None:
        """Makes the folder, its logs and those of its `parts` that are named, and points `latest` here.

        Raises:
            ResourceError: the place cannot be written.
        """
        try:
            for folder in (self.path, self.logs, *parts):
                folder.mkdir(parents=True, exist_ok=True)
            link = self.path.parent / f".{LATEST}-{os.getpid()}"
            link.symlink_to(self.path.name)
            os.replace(link, self.path.parent / LATEST)
        except OSError as error:
            raise _not_writable(self.path, error) from error


def _not_writable(path: Path, error: OSError) -> ResourceError:
    return ResourceError(
        f"cannot write the run's folder: {error}",
        place=f"runs_dir, name ({path})",
        remedy="choose a folder that you may write, with `runs_dir=…` or `name=…`",
    )
