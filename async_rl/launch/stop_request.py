"""Ctrl-C: the first asks for an end after the step, with a checkpoint; the second does not wait. SIGUSR1 asks for a
checkpoint alone.

Owns the signal handlers of a process that trains in its main thread.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the user has asked for an end.

    with stop.listening(): ...      # signals count inside
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """
        Args:
            say: tells the user that the first signal was heard.
        """
        self._say = say
        self._can_wait = False
        self._has_wish = False
        self.is_made = False

    def has_begun(self) -> None:
        """From now on there is something to keep: before, the first signal ends everything at once."""
        self._can_wait = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Counts signals inside the block; those that do not wait raise KeyboardInterrupt in it."""
        before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._hear_wish)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def take_wish(self) -> bool:
        """Whether a checkpoint was asked for since this was last called."""
        had, self._has_wish = self._has_wish, False
        return had

    def _hear_wish(self, number: int, frame: FrameType | None) -> None:
        self._has_wish = True
        self._say("SIGUSR1: a checkpoint will be written after this step")

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.is_made or not self._can_wait:
            raise KeyboardInterrupt
        self.is_made = True
        self._say(
            f"{signal.Signals(number).name}: stopping after this step, with a checkpoint; once more stops at once"
        )
