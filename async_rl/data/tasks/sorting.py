"""Sorting digits: `50314:` → `01345`.

Owns the prompts and answers of sorting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from async_rl.data.row import Row
from async_rl.data.tasks.table import deal


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """Strings of `length` digits."""

    alphabet: ClassVar[str] = "0123456789:"
    length: int = 5
    """1 to 6."""

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Distinct strings; see `Task`."""
        numbers = deal(10**self.length, is_held_out=is_held_out, count=count, seed=seed)
        return [self._row(f"{number:0{self.length}d}") for number in numbers]

    def _row(self, digits: str) -> Row:
        return Row(prompt=f"{digits}:", answer="".join(sorted(digits)), task="sorting")


@dataclass(frozen=True, kw_only=True)
class CarelessSorting(Sorting):
    """The same strings, but most training answers are wrong: for a warm start that leaves something to learn.

    A wrong answer is sorted the other way round, or names each digit once. Held-out answers are right.
    """

    wrong_share: float = 0.65

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Distinct strings; see `Task`."""
        rows = super().rows(is_held_out=is_held_out, count=count, seed=seed)
        if is_held_out:
            return rows
        draws = np.random.Generator(np.random.Philox(key=[seed, 2])).random((len(rows), 2))
        return [
            replace(row, answer=_carelessly(row.answer, is_reversed=way < 0.5)) if wrong < self.wrong_share else row
            for row, (wrong, way) in zip(rows, draws, strict=True)
        ]


def _carelessly(answer: str, *, is_reversed: bool) -> str:
    return answer[::-1] if is_reversed else "".join(sorted(set(answer)))
