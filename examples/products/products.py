"""A task and a reward of your own: one-digit times two-digit products, `7*38=` → `266`.

The config names them by file: `data.task: examples/products/products.py:Products`,
`reward.function: examples/products/products.py:reward`.
"""

from collections.abc import Mapping, Sequence
from random import Random

from async_rl.data.row import Row
from async_rl.protocol import Scalar


class Products:
    """All 720 products; every tenth is held out, whatever the seed."""

    alphabet = "0123456789*="

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Up to `count` rows in an order of the seed's."""
        factors = [(a, b) for a in range(2, 10) for b in range(10, 100)]
        own = [pair for number, pair in enumerate(factors) if (number % 10 == 0) is is_held_out]
        Random(seed).shuffle(own)
        return [
            Row(prompt=f"{a}*{b}=", answer=str(a * b), task=f"times {a}", metadata={"factor": a})
            for a, b in own[:count]
        ]


def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """1 for the product; up to 0.3 for right digits in their places, so that a near miss earns something."""
    if response == answer:
        return 1.0
    if len(response) != len(answer):
        return 0.0
    return 0.3 * sum(a == b for a, b in zip(response, answer, strict=True)) / len(answer)
