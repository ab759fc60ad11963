"""The live panel: a snapshot as rich renderables. Pure."""

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from async_rl.ledger import Counts
from async_rl.terminal.chart import bar, duration, number, sparkline
from async_rl.terminal.status import RunStatus

CHART_WIDTH = 48
BAR_WIDTH = 24


def run_panel(status: RunStatus) -> Panel:
    """Everything about a run at one moment, on one screen."""
    parts: list[RenderableType] = [_progress(status), _processes(status)]
    if status.rewards:
        parts.append(_rewards(status))
    if sum(status.staleness):
        parts.append(staleness_chart(status.staleness, bound=status.staleness_bound))
    if status.counts is not None:
        parts.append(_ledger(status.counts))
    if status.checkpoint:
        parts.append(Text(f"checkpoint  {status.checkpoint}", style="dim", overflow="fold"))
    return Panel(
        Group(*_spaced(parts)), title=f"[bold]async-rl[/bold] {status.name}", title_align="left", padding=(0, 1)
    )


def staleness_chart(counts: tuple[int, ...], *, bound: int) -> Table:
    """Share of trained tokens by staleness, 0 to the bound (or to the largest seen)."""
    table = Table.grid(padding=(0, 1))
    total = sum(counts)
    for n in range(max(len(counts), bound + 1)):
        share = (counts[n] if n < len(counts) else 0) / total
        label = "staleness" if n == 0 else ""
        style = "red" if n > bound else "cyan"
        table.add_row(
            f"{label:<10}", f"{n:>3}", Text(f"{bar(share, width=BAR_WIDTH):<{BAR_WIDTH}}", style), f"{share:6.1%}"
        )
    return table


def _spaced(parts: list[RenderableType]) -> list[RenderableType]:
    return [item for part in parts for item in (part, Text(""))][:-1]


def _progress(status: RunStatus) -> RenderableType:
    left = f"left {duration(status.eta_s)}" if status.eta_s is not None else "left –"
    return Columns(
        [
            Text(f"{status.phase:<10}", style="bold"),
            ProgressBar(total=status.steps, completed=status.version, width=40),
            Text(f"step {status.version}/{status.steps}   {duration(status.elapsed_s)} gone   {left}"),
        ]
    )


def _processes(status: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    table.add_column("process")
    for name in ("version", "running", "tokens/s", "idle", "step", "loss", "grad norm"):
        table.add_column(name, justify="right")
    for row in status.generators:
        version = "–" if row.version is None else str(row.version)
        table.add_row(row.name, version, str(row.running), f"{row.tokens_per_s:.0f}", _idle(row.idle_share), "", "", "")
    learner = status.learner
    if learner is not None:
        table.add_row(
            "learner",
            str(status.version),
            "",
            f"{learner.tokens_per_s:.0f}",
            _idle(learner.idle_share),
            f"{learner.step_s:.2f} s",
            number(learner.loss, "+.4f"),
            number(learner.grad_norm),
        )
    return table


def _idle(share: float) -> Text:
    return Text(f"{share:.0%}", style="yellow" if share > 0.3 else "green")


def _rewards(status: RunStatus) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_row(
        f"{'reward':<10}", Text(sparkline(status.rewards, width=CHART_WIDTH), "green"), number(status.rewards[-1])
    )
    held_out = status.evaluation
    if held_out is not None:
        table.add_row(
            f"{'held out':<10}",
            f"sampled {number(held_out.reward)}  greedy {number(held_out.greedy)}  at version {held_out.version}",
        )
    return table


def _ledger(counts: Counts) -> Text:
    live = f"queued {counts.queued}  leased {counts.leased}  delivered {counts.delivered}  batched {counts.batched}"
    ended = f"trained {counts.trained}  stale {counts.stale}  filtered {counts.filtered}  failed {counts.failed}"
    return Text(f"groups      issued {counts.issued} = {ended}  {live}", overflow="fold")
