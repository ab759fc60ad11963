"""Addition of two numbers: `37+85=` → `122`.

Held-out sums are pairs of numbers that no training row has.
"""

from collections.abc import Sequence

import numpy as np

from async_rl.data.row import Row


class Addition:
    """Sums of two numbers of at most two digits."""

    alphabet = "0123456789+="
    bound = 100

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Distinct pairs as long as there are any left; the last tenth of a shuffled table is held out."""
        pairs = np.random.Generator(np.random.Philox(key=[seed, 0])).permutation(self.bound**2)
        first_held_out = 9 * len(pairs) // 10
        own = pairs[first_held_out:] if is_held_out else pairs[:first_held_out]
        return [self._row(int(own[i % len(own)])) for i in range(count)]

    def _row(self, pair: int) -> Row:
        a, b = divmod(pair, self.bound)
        return Row(prompt=f"{a}+{b}=", answer=str(a + b), task="addition")
