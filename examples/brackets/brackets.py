"""A task and a reward of your own: closing brackets, `([{` → `}])`.

The configs beside this file name them: `data.task: examples/brackets/brackets.py:Brackets`,
`reward.function: examples/brackets/brackets.py:reward`.
"""

from collections.abc import Mapping, Sequence
from itertools import product, takewhile
from random import Random

from async_rl.data.row import Row
from async_rl.protocol import Scalar

CLOSING = str.maketrans("([{", ")]}")


class Brackets:
    """Four to eight opening brackets; every tenth string is held out, whatever the seed."""

    alphabet = "()[]{}"

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """Up to `count` rows in an order of the seed's."""
        strings = ["".join(s) for length in range(4, 9) for s in product("([{", repeat=length)]
        own = [text for number, text in enumerate(strings) if (number % 10 == 0) is is_held_out]
        Random(seed).shuffle(own)
        return [self._row(text) for text in own[:count]]

    def _row(self, text: str) -> Row:
        length = len(text)
        return Row(
            prompt=text, answer=text[::-1].translate(CLOSING), task=f"{length} brackets", metadata={"length": length}
        )


def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """1 if everything is closed; else up to 0.5 for how far it goes right, so that a near miss earns something."""
    if response == answer:
        return 1.0
    num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(response, answer, strict=False)))
    return 0.5 * num_right / len(answer)
