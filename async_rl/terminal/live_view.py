"""A run on a terminal: one panel that is drawn over, messages above it.

Owns the pace and the frame; what the panel says is not its business.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

MIN_INTERVAL_S = 0.25


class Timed(Protocol):
    """A snapshot of something that goes on."""

    @property
    def elapsed_s(self) -> float:
        """Since its launch."""
        ...


_Status = TypeVar("_Status", bound=Timed)


class LiveView(Generic[_Status]):
    """Draws at most four times a second, by the clock of the snapshots."""

    def __init__(self, console: Console, panel: Callable[[_Status], RenderableType]) -> None:
        """
        Args:
            console: a terminal.
            panel: what a snapshot looks like.
        """
        self._console = console
        self._panel = panel
        self._last: _Status | None = None
        self._drawn_s = float("-inf")
        # No thread of its own: the view draws when it is told something, and only then.
        # What others print belongs into the log, not above the panel.
        self._live = Live(
            console=console, auto_refresh=False, transient=False, redirect_stdout=False, redirect_stderr=False
        )

    def update(self, status: _Status) -> None:
        """Draws the snapshot, unless the last was drawn just now."""
        self._last = status
        if status.elapsed_s - self._drawn_s >= MIN_INTERVAL_S:
            self._draw(status)

    def say(self, message: str) -> None:
        """Prints a message above the panel."""
        self._console.print(Text(f"• {message}"))

    def close(self) -> None:
        """Draws the newest snapshot and leaves it standing."""
        if self._last is not None and self._live.is_started:
            # `stop` draws it.
            self._live.update(self._panel(self._last))
        self._live.stop()

    def _draw(self, status: _Status) -> None:
        self._drawn_s = status.elapsed_s
        if not self._live.is_started:
            self._live.start()
        self._live.update(self._panel(status), refresh=True)
