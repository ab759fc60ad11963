"""What a dry run prints: the resolved config, the processes, the guarantees, and what is missing."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from async_rl.config.compose import dump_config
from async_rl.config.schema import RunConfig
from async_rl.errors import UserError
from async_rl.plan import make_plan


def print_plan(console: Console, config: RunConfig, *, cores: Sequence[int], missing: Sequence[UserError]) -> None:
    """Prints the plan of a run; `missing` is what its launch would stumble over."""
    plan = make_plan(config, cores=cores)
    console.print(Text("Config", style="bold"))
    # As text: neither wrapped nor coloured, so that it can be copied into a file and launched.
    console.print(Text(dump_config(config)), soft_wrap=True)
    console.print(Text("Processes", style="bold"))
    console.print(_table([(p.name, p.where, p.work) for p in plan.processes]))
    console.print(Text("Guarantees", style="bold"))
    console.print(_table([(g.subject, g.words) for g in plan.guarantees]))
    for warning in plan.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))
    if missing:
        console.print(Text("Missing on this machine; a launch would stop here:", style="bold red"))
    for error in missing:
        console.print(Text(f"  {error}"), soft_wrap=True)
    console.print(Text("Dry run: nothing was started.", style="dim"))


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 2))
    for row in rows:
        table.add_row(Text(row[0], style="cyan", no_wrap=True), *[Text(cell) for cell in row[1:]])
    table.add_row("")
    return table
