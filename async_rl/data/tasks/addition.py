"""Addition of two numbers: `37+85=` → `122`.

Owns the prompts and answers of sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from async_rl.data.row import Row
from async_rl.data.tasks.table import deal


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Sums of two numbers of at most `digits` digits."""

    alphabet: ClassVar[str] = "0123456789+="
    digits: int = 2
    """1 to 3."""

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Distinct pairs of numbers; see `Task`."""
        numbers = deal(self._bound**2, is_held_out=is_held_out, count=count, seed=seed)
        return [self._row(number) for number in numbers]

    @property
    def _bound(self) -> int:
        return int(10**self.digits)

    def _row(self, number: int) -> Row:
        a, b = divmod(number, self._bound)
        return Row(prompt=f"{a}+{b}=", answer=str(a + b), task="addition")
