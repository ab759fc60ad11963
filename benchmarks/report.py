"""What every benchmark prints and writes: a table, and with `--json FILE` the same as data.

{"ratios": {"overlap": 1.8}, "rows": [{…}], "machine": {…}}
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

Cell = str | int | float
Row = Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A benchmark's outcome."""

    title: str
    ratios: Mapping[str, float]
    """By name; each of two things measured beside each other in this run."""
    rows: Sequence[Row]
    """Of the same columns."""

    def publish(self, json_path: Path | None) -> None:
        """Prints the table, and writes JSON if there is a path."""
        table = Table(title=self.title)
        for column in self.rows[0]:
            table.add_column(column, justify="left" if isinstance(self.rows[0][column], str) else "right")
        for row in self.rows:
            table.add_row(*(_text(cell) for cell in row.values()))
        console = Console()
        console.width = max(console.width, 120)
        console.print(table)
        for name, ratio in self.ratios.items():
            console.print(f"{name}: {ratio:.2f}×")
        if json_path is not None:
            content = {"ratios": dict(self.ratios), "rows": [dict(row) for row in self.rows], "machine": machine()}
            json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def machine() -> dict[str, Cell]:
    """What a reader needs to compare."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def _text(cell: Cell) -> str:
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
