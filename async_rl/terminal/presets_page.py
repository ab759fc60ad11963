"""The list of correction presets in a terminal. Pure."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from async_rl.config.presets import Preset


def presets_page(presets: Sequence[Preset]) -> RenderableType:
    """Each preset's name, what it sets, and when to take it."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("preset", no_wrap=True, style="cyan")
    table.add_column("sets", ratio=1)
    table.add_column("when", ratio=1)
    for preset in presets:
        table.add_row(preset.name, Text(preset.words), Text(preset.use))
    return table
