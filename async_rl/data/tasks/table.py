"""Numbered rows, dealt out to training and evaluation.

Owns the split: a fixed tenth of the numbers is held out, whatever the seed; the seed decides the order alone. So a
warm start and a run with different seeds agree on what neither may train on.
"""

import numpy as np

HELD_OUT_SHARE = 10
"""One number in so many is held out."""
MAX_ROWS = 10**6
"""A table is shuffled whole; larger ones would take seconds."""


def deal(num_rows: int, *, is_held_out: bool, count: int, seed: int) -> list[int]:
    """`count` distinct numbers below `num_rows` of one side of the split, or all of that side if it has fewer."""
    assert 0 < num_rows <= MAX_ROWS, num_rows
    # Philox is defined to the bit, so split and order are the same on every machine.
    numbers = np.random.Generator(np.random.Philox(key=[num_rows, 0])).permutation(num_rows)
    num_held_out = max(1, num_rows // HELD_OUT_SHARE)
    own = numbers[:num_held_out] if is_held_out else numbers[num_held_out:]
    order = np.random.Generator(np.random.Philox(key=[seed, int(is_held_out)]))
    return [int(number) for number in order.permutation(own)[:count]]
