"""The memory of a run in a terminal: a column for a learner rank, one for an engine. Pure."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.ranks import num_ranks
from async_rl.config.schema import RunConfig
from async_rl.sizing.account import GIB, PARTS, Account
from async_rl.sizing.engine import kv_tokens
from async_rl.sizing.parameters import active_parameters, model_parameters


def memory_table(accounts: Sequence[Account], *, usable: int) -> Table:
    """GiB of each part, and their sum.

    Args:
        usable: bytes of a device that may be filled; 0: not known.
    """
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    table.add_column("GiB", no_wrap=True, style="cyan")
    for account in accounts:
        table.add_column(account.owner, justify="right")
    for name in PARTS:
        parts = [account.part(name) for account in accounts]
        table.add_row(name, *["" if part is None else _gib(part.num_bytes) for part in parts])
    table.add_row("together", *[_sum(account, usable) for account in accounts])
    if usable:
        table.add_row("there is", *[_gib(usable)] * len(accounts))
    return table


def memory_notes(config: RunConfig, sizes: ModelSizes, accounts: Sequence[Account]) -> list[tuple[str, str]]:
    """What the table does not say: the model's size, what an engine holds, and the sum on a machine without GPUs."""
    total, active = model_parameters(sizes), active_parameters(sizes)
    of_each = f", of which each token takes {_count(active)}" if active < total else ""
    held, full = kv_tokens(sizes, config.model, config.generation), config.generation.max_model_len
    rows = [
        ("model", f"{_count(total)} parameters{of_each}"),
        (
            "keys and values",
            f"{held:,} tokens an engine: {min(held // full, config.generation.max_concurrent)} of "
            f"{config.generation.max_concurrent} requests at their full length of {full:,}",
        ),
    ]
    if not config.cluster.gpus_per_node:
        learner, engine = accounts
        together = num_ranks(config) * learner.total + config.generation.num_generators * engine.total
        rows.append(("all processes", f"about {_gib(together)} GiB of this machine's memory"))
    return rows


def _sum(account: Account, usable: int) -> Text:
    is_over = 0 < usable < account.total
    return Text(_gib(account.total), style="bold red" if is_over else "bold")


def _gib(num_bytes: int) -> str:
    gib = num_bytes / GIB
    return f"{gib:,.1f}" if gib >= 10 else f"{gib:.2f}"


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"
