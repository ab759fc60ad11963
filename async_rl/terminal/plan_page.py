"""What a dry run prints: the resolved config, the processes, their memory, the guarantees, and what is missing."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from async_rl.config.compose import dump_config
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.schema import RunConfig
from async_rl.plan import make_plan
from async_rl.readiness import Readiness, Rows
from async_rl.sizing.fit import usable_bytes
from async_rl.sizing.run import accounts
from async_rl.terminal.memory_table import memory_notes, memory_table


def print_plan(console: Console, config: RunConfig, *, cores: Sequence[int], readiness: Readiness) -> None:
    """Prints the plan of a run, and what its launch would find on this machine."""
    plan = make_plan(config, cores=cores)
    console.print(Text("Config", style="bold"))
    # As text: neither wrapped nor coloured, so that it can be copied into a file and launched.
    console.print(Text(dump_config(config)), soft_wrap=True)
    console.print(Text("Processes", style="bold"))
    console.print(_table([(p.name, p.where, p.work) for p in plan.processes]))
    console.print(Text("Memory", style="bold"))
    _print_memory(console, config, readiness.sizes)
    if readiness.rows is not None:
        console.print(Text("Data", style="bold"))
        console.print(_table(data_words(config, readiness.rows)))
    console.print(Text("Guarantees", style="bold"))
    console.print(_table([(g.subject, g.words) for g in plan.guarantees]))
    for warning in plan.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))
    if readiness.missing:
        console.print(Text("Missing on this machine; a launch would stop here:", style="bold red"))
    for error in readiness.missing:
        console.print(Text(f"  {error}"), soft_wrap=True)
    console.print(Text("Dry run: nothing was started.", style="dim"))


def _print_memory(console: Console, config: RunConfig, sizes: ModelSizes | None) -> None:
    if sizes is None:
        console.print(_table([("not known", "the model's folder is not here, and model.sizes does not say its sizes")]))
        return
    devices = accounts(config, sizes)
    console.print(memory_table(devices, usable=usable_bytes(config)))
    console.print(_table(memory_notes(config, sizes, devices)))


def data_words(config: RunConfig, rows: Rows) -> list[tuple[str, str]]:
    """The rows of either split, and how often training goes through them."""
    groups = config.steps * config.learner.groups_per_step
    passes = f"{groups / rows.train:.1f} times" if groups >= rows.train else f"{groups / rows.train:.0%} of them"
    return [
        ("training", f"{rows.train:,} rows; {config.steps:,} batches take {groups:,} groups: {passes}"),
        ("held out", f"{rows.held_out:,} rows" if rows.held_out else "none: the run is not evaluated"),
    ]


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 2))
    for row in rows:
        table.add_row(Text(row[0], style="cyan", no_wrap=True), *[Text(cell) for cell in row[1:]])
    table.add_row("")
    return table
