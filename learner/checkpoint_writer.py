"""Writes checkpoints in a thread, while training goes on.

    begin ─► the one in hand is waited for ─► snapshot, while the step stands still ─► thread: write ─► then

Owns the thread, of which there is one at most, and the two times. Knows nothing of what is written.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from learner.training_snapshot import TrainingSnapshot


@dataclass(frozen=True, kw_only=True)
class WriteTimes:
    """Of one checkpoint, in seconds."""

    stood_s: float
    """Training stood still: for the checkpoint before, and to copy this one."""
    write_s: float
    """Beside training."""


class CheckpointWriter:
    """One rank's; all ranks begin and finish at once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, take: Callable[[], TrainingSnapshot], folder: Path, then: Callable[[WriteTimes], None]) -> None:
        """Takes a snapshot and has it written, beside what the caller does next.

        Args:
            take: takes it, in this thread.
            folder: where it goes.
            then: called in the other thread, once this rank's part is on the disk; on the rank that speaks, all ranks'.

        Raises:
            ResourceError: the checkpoint before could not be written.
        """
        began_s = self._clock()
        self.finish()
        snapshot = take()
        stood_s = self._clock() - began_s

        def write() -> None:
            try:
                snapshot.write(folder)
                then(WriteTimes(stood_s=stood_s, write_s=self._clock() - began_s - stood_s))
            # The thread's edge: whoever waits for it raises.
            except BaseException as error:
                self._error = error

        # It ends with the process, which may fail while ranks of a dead peer still wait for each other in it.
        self._thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits for the checkpoint in hand, if there is one.

        Raises:
            ResourceError: it could not be written.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
