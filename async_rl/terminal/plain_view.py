"""A run as plain lines, for logs and pipes: one line a step, but not more often than `interval_s`."""

from rich.console import Console
from rich.text import Text

from async_rl.terminal.chart import duration, number
from async_rl.terminal.status import RunStatus


class PlainView:
    """Prints a line when steps were made, or the phase changed; nothing is ever drawn over."""

    def __init__(self, console: Console, *, interval_s: float = 2.0) -> None:
        self._console = console
        self._interval_s = interval_s
        self._last: RunStatus | None = None

    def update(self, status: RunStatus) -> None:
        """Prints a line, if there is news."""
        if self._last is not None and not self._is_news(status, self._last):
            return
        self._last = status
        self._print(describe(status))

    def say(self, message: str) -> None:
        """Prints a message as a line of its own."""
        self._print(message)

    def close(self) -> None:
        """Nothing stands open."""

    def _is_news(self, status: RunStatus, last: RunStatus) -> bool:
        # Once batches are trained the line does not name the phase: it would be the last one again.
        if status.phase != last.phase and status.learner is None:
            return True
        is_due = status.elapsed_s - last.elapsed_s >= self._interval_s or status.version == status.steps
        return status.version != last.version and is_due

    def _print(self, line: str) -> None:
        # Neither wrapped nor read as markup: whoever greps a log wants its lines whole.
        self._console.print(Text(line), soft_wrap=True)


def describe(status: RunStatus) -> str:
    """One line: where the run is, what it earns, how stale it trains, how fast it is."""
    if status.learner is None or not status.rewards:
        return f"[{duration(status.elapsed_s)}] {status.phase}: step {status.version}/{status.steps}"
    total = sum(status.staleness)
    mean = sum(n * count for n, count in enumerate(status.staleness)) / total if total else 0.0
    idle = [row.idle_share for row in status.generators]
    parts = [
        f"[{duration(status.elapsed_s)}] step {status.version}/{status.steps}",
        f"reward {number(status.rewards[-1])}",
        f"loss {number(status.learner.loss, '+.4f')}",
        f"staleness {mean:.2f} (max {max(0, len(status.staleness) - 1)}/{status.staleness_bound})",
        f"generators {sum(row.tokens_per_s for row in status.generators):.0f} tok/s"
        + (f" idle {sum(idle) / len(idle):.0%}" if idle else ""),
        f"learner {status.learner.tokens_per_s:.0f} tok/s idle {status.learner.idle_share:.0%}",
    ]
    if status.eta_s is not None and status.version < status.steps:
        parts.append(f"left {duration(status.eta_s)}")
    return "  ".join(parts)
