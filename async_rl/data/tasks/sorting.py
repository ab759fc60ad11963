"""Sorting digits: `503142:` → `012345`.

Owns the prompts and answers of sorting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from async_rl.data.row import Row
from async_rl.data.tasks.table import deal


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """Strings of `length` digits."""

    alphabet: ClassVar[str] = "0123456789:"
    length: int = 6
    """1 to 6."""

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Distinct strings; see `Task`."""
        numbers = deal(10**self.length, is_held_out=is_held_out, count=count, seed=seed)
        return [self._row(f"{number:0{self.length}d}") for number in numbers]

    def _row(self, digits: str) -> Row:
        return Row(prompt=f"{digits}:", answer="".join(sorted(digits)), task="sorting")
