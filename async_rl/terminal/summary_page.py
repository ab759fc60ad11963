"""The page that a run ends with: what it came to, and where everything is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from async_rl.sft_summary import SftSummary
from async_rl.summary import Exit, StartEnd, Summary
from async_rl.terminal.chart import duration, number
from async_rl.terminal.panel import staleness_chart


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where what a run made lies; empty where it made none."""

    run: str
    checkpoint: str = ""
    model: str = ""
    dashboard: str = ""
    """The command that opens it."""


def summary_page(summary: Summary, places: Places, *, staleness_bound: int) -> RenderableType:
    """Rewards, speeds, idle shares, staleness, and the way on."""
    parts: list[RenderableType] = [_numbers(summary), Text("")]
    if summary.staleness.histogram:
        parts += [staleness_chart(tuple(summary.staleness.histogram), bound=staleness_bound), Text("")]
    parts.append(_places(places))
    return _page(parts, summary.exit)


def sft_summary_page(summary: SftSummary, places: Places) -> RenderableType:
    """The same of a fine-tuning: losses, speed, and the way on."""
    table, best = _grid(), summary.best_validation
    table.add_row("loss", _change(summary.loss, ".4f"))
    if best.loss is not None:
        table.add_row(
            "validation", f"{_change(summary.validation, '.4f')}   (best {best.loss:.4f} at step {best.step})"
        )
    table.add_row(
        "trained", f"{summary.steps} steps, {summary.trained_tokens:,} tokens learned, in {duration(summary.wall_s)}"
    )
    table.add_row("speed", f"{number(summary.tokens_per_s, ',.0f')} tokens/s, MFU {number(summary.mfu, '.1%')}")
    table.add_row("memory", f"{number(summary.memory_gib, '.2f')} GiB a rank at most")
    return _page([table, Text(""), _places(places)], summary.exit)


def _page(parts: Sequence[RenderableType], exit_: Exit) -> Panel:
    style = {Exit.COMPLETED: "green", Exit.STOPPED: "yellow", Exit.FAILED: "red"}[exit_]
    return Panel(Group(*parts), title=f"[bold]{exit_}[/bold]", title_align="left", border_style=style, padding=(0, 1))


def _numbers(summary: Summary) -> Table:
    table = _grid()
    table.add_row("reward", f"{_change(summary.reward)}   (held out, sampled)")
    table.add_row("", f"{_change(summary.greedy)}   (held out, greedy)")
    wall = "–" if summary.wall_s is None else duration(summary.wall_s)
    table.add_row("trained", f"{summary.steps} steps, {summary.trained_tokens:,} tokens in {wall}")
    speed, idle = summary.tokens_per_s, summary.idle
    table.add_row("generators", f"{number(speed.generators, ',.0f')} tokens/s, idle {number(idle.generators, '.0%')}")
    table.add_row("learner", f"{number(speed.learner, ',.0f')} tokens/s, idle {number(idle.learner, '.0%')}")
    weights = summary.weights
    table.add_row(
        "weights",
        f"sampled with {number(weights.active_s, '.3f')} s after their publishing, "
        f"engines stood still {number(weights.pause_s, '.3f')} s (medians)",
    )
    importance = summary.importance
    table.add_row(
        "importance",
        f"mean {number(importance.mean, '.3f')}, truncated {number(importance.truncated_share, '.1%')}, "
        f"effective sample {number(importance.ess, '.0%')}",
    )
    return table


def _places(places: Places) -> Table:
    table = _grid()
    for label, place in (
        ("run", places.run),
        ("checkpoint", places.checkpoint),
        ("model", places.model),
        ("dashboard", places.dashboard),
    ):
        if place:
            table.add_row(label, Text(place, overflow="fold"))
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=10)
    return table


def _change(pair: StartEnd, form: str = ".3f") -> str:
    return f"{number(pair.start, form)} → {number(pair.end, form)}"
