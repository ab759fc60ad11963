"""Sorting digits: `503142:` → `012345`.

Held-out rows are digit strings that no training row has.
"""

from collections.abc import Sequence

import numpy as np

from async_rl.data.row import Row


class Sorting:
    """Strings of six digits."""

    alphabet = "0123456789:"
    length = 6

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Distinct strings as long as there are any left; the last tenth of a shuffled table is held out."""
        table = np.random.Generator(np.random.Philox(key=[seed, 0])).permutation(10**self.length)
        first_held_out = 9 * len(table) // 10
        own = table[first_held_out:] if is_held_out else table[:first_held_out]
        return [self._row(int(own[i % len(own)])) for i in range(count)]

    def _row(self, number: int) -> Row:
        digits = f"{number:0{self.length}d}"
        return Row(prompt=f"{digits}:", answer="".join(sorted(digits)), task="sorting")
