"""A fine-tuning while it goes on: a panel on a terminal, plain lines elsewhere."""

from typing import Protocol

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from async_rl.terminal.chart import duration, number, sparkline
from async_rl.terminal.live_view import LiveView
from async_rl.terminal.sft_status import SftStatus, Step
from async_rl.terminal.view import can_redraw

CHART_WIDTH = 48
LINE_EVERY_S = 2.0
"""Between two lines where there is no terminal."""


class SftView(Protocol):
    """As `View`."""

    def update(self, status: SftStatus) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


def open_sft_view(console: Console) -> SftView:
    """A live view on a terminal, plain lines where output goes to a file or a pipe."""
    return LiveView(console, sft_panel) if can_redraw(console) else PlainSftView(console)


class PlainSftView:
    """A line when steps were made, but not too often; one for each validation, and for the last step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: SftStatus | None = None
        self._num_validations = 0

    def update(self, status: SftStatus) -> None:
        """Prints what is news."""
        if status.last is not None and self._is_due(status):
            self._last = status
            self._print(f"step {status.step}/{status.steps}  {describe(status.last)}{_left(status)}")
        if len(status.validations) > self._num_validations:
            self._num_validations = len(status.validations)
            self._print(f"step {status.step}/{status.steps}  validation loss {status.validations[-1]:.4f}")

    def say(self, message: str) -> None:
        """Prints a message as a line of its own."""
        self._print(message)

    def close(self) -> None:
        """Nothing stands open."""

    def _is_due(self, status: SftStatus) -> bool:
        last = self._last
        if last is None:
            return True
        is_time = status.elapsed_s - last.elapsed_s >= LINE_EVERY_S or status.step == status.steps
        return status.step != last.step and is_time

    def _print(self, line: str) -> None:
        # Neither wrapped nor read as markup: whoever greps a log wants its lines whole.
        self._console.print(Text(line), soft_wrap=True)


def describe(step: Step) -> str:
    """Loss, learning rate and speed in a line."""
    return f"loss {step.loss:.4f}  lr {step.lr:.1e}  {step.tokens_per_s:,.0f} tok/s  MFU {step.mfu:.1%}"


def sft_panel(status: SftStatus) -> Panel:
    """Everything about a fine-tuning at one moment."""
    parts: list[RenderableType] = [_progress(status)]
    if status.last is not None:
        parts += [Text(""), _curves(status), Text(""), _speed(status, status.last)]
    if status.checkpoint:
        parts += [Text(""), Text(f"checkpoint  {status.checkpoint}", style="dim", overflow="fold")]
    title = f"[bold]async-rl sft[/bold] {status.name}"
    return Panel(Group(*parts), title=title, title_align="left", padding=(0, 1))


def _progress(status: SftStatus) -> RenderableType:
    left = duration(status.eta_s) if status.eta_s is not None else "–"
    return Columns(
        [
            ProgressBar(total=status.steps, completed=status.step, width=40),
            Text(f"step {status.step}/{status.steps}   {duration(status.elapsed_s)} gone   left {left}"),
        ]
    )


def _curves(status: SftStatus) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_row(
        f"{'loss':<10}", Text(sparkline(status.losses, width=CHART_WIDTH), "green"), f"{status.losses[-1]:.4f}"
    )
    if status.validations:
        best = f" (best {number(status.best_loss, '.4f')} at step {status.best_step})" if status.best_step else ""
        chart = Text(sparkline(status.validations, width=CHART_WIDTH), "cyan")
        table.add_row(f"{'validation':<10}", chart, f"{status.validations[-1]:.4f}{best}")
    return table


def _speed(status: SftStatus, step: Step) -> Text:
    ranks = "1 rank" if status.num_ranks == 1 else f"{status.num_ranks} ranks"
    speed = f"{step.tokens_per_s:,.0f} tokens/s  MFU {step.mfu:.1%}  {ranks}, {step.memory_gib:.1f} GiB at most"
    return Text(f"{'speed':<10} {speed}   lr {step.lr:.1e}  grad norm {step.grad_norm:.3f}", overflow="fold")


def _left(status: SftStatus) -> str:
    return f"  left {duration(status.eta_s)}" if status.eta_s and status.step < status.steps else ""
