"""Sorting as a careless pupil does it: `503150:` → `553100` or `0135` more often than `001355`.

Owns the mistakes. For warm starts that leave something to learn: the model comes to write right and wrong answers, the
wrong ones most of the time, and only rewards can tell it which is which.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from async_rl.data.row import Row
from async_rl.data.tasks.sorting import Sorting


@dataclass(frozen=True, kw_only=True)
class CarelessSorting:
    """The prompts of `Sorting`; `mistake_share` of the answers fall instead of rising, or lack the repeated digits."""

    alphabet: ClassVar[str] = Sorting.alphabet
    length: int = 5
    """1 to 6."""
    mistake_share: float = 0.75

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Distinct prompts; held-out answers have mistakes too. See `Task`."""
        right = Sorting(length=self.length).rows(is_held_out=is_held_out, count=count, seed=seed)
        draws = np.random.Generator(np.random.Philox(key=[seed, 2])).random(len(right))
        return [
            replace(row, answer=self._answer(row.answer, float(draw))) for row, draw in zip(right, draws, strict=True)
        ]

    def _answer(self, rising: str, draw: float) -> str:
        if draw < self.mistake_share / 2:
            return rising[::-1]
        if draw < self.mistake_share:
            return "".join(sorted(set(rising)))
        return rising
