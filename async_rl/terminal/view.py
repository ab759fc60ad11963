"""Whoever shows a run while it goes on."""

from typing import Protocol

from rich.console import Console

from async_rl.terminal.live_view import LiveView
from async_rl.terminal.panel import run_panel
from async_rl.terminal.plain_view import PlainView
from async_rl.terminal.status import RunStatus


class View(Protocol):
    """Takes snapshots and messages, from one thread; closed before the summary is printed."""

    def update(self, status: RunStatus) -> None:
        """Shows a snapshot, or skips it: a view draws as often as a reader can follow."""
        ...

    def say(self, message: str) -> None:
        """Prints something that the user should read."""
        ...

    def close(self) -> None:
        """Leaves the last snapshot standing. May be called twice."""
        ...


def open_view(console: Console) -> View:
    """A live view on a terminal, plain lines where output goes to a file or a pipe."""
    return LiveView(console, run_panel) if can_redraw(console) else PlainView(console)


def can_redraw(console: Console) -> bool:
    """Whether what was printed can be drawn over."""
    return console.is_terminal and not console.is_dumb_terminal
