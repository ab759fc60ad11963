"""The list of options in a terminal. Pure."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from async_rl.config.option import written
from async_rl.config.tree import Tree, expected


def options_page(tree: Tree, word: str) -> RenderableType:
    """Options whose name or effect contains `word`, with default, type and range, and effect."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("option", no_wrap=True, style="cyan")
    table.add_column("default")
    table.add_column("takes")
    table.add_column("effect", ratio=1)
    for path, entry in tree.entries.items():
        if word.lower() in path or word.lower() in entry.help.text.lower():
            table.add_row(path, Text(written(entry.value)), Text(expected(entry)), Text(entry.help.text))
    return table if table.row_count else Text(f"No option of {tree.command} has {word!r} in its name or its effect.")
