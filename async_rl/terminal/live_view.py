"""A run on a terminal: one panel that is drawn over, messages above it.

Owns the pace and the frame; what the panel says is `panel`'s.
"""

from rich.console import Console
from rich.live import Live
from rich.text import Text

from async_rl.terminal.panel import run_panel
from async_rl.terminal.status import RunStatus

MIN_INTERVAL_S = 0.25


class LiveView:
    """Draws at most four times a second, by the clock of the snapshots."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: RunStatus | None = None
        self._drawn_s = float("-inf")
        # No thread of its own: the view draws when it is told something, and only then.
        # What others print belongs into the log, not above the panel.
        self._live = Live(
            console=console, auto_refresh=False, transient=False, redirect_stdout=False, redirect_stderr=False
        )

    def update(self, status: RunStatus) -> None:
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
            self._live.update(run_panel(self._last))
        self._live.stop()

    def _draw(self, status: RunStatus) -> None:
        self._drawn_s = status.elapsed_s
        if not self._live.is_started:
            self._live.start()
        self._live.update(run_panel(status), refresh=True)
