"""Which of a data set's rows the n-th place has.

Owns the order. Stateless: the place and the seed decide, so the cursor of a checkpoint is one number (how many groups
were issued, or steps taken), and a restart can ask for any place again.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from async_rl.protocol import Prompt


class EpochOrder:
    """All of `size` rows once an epoch, in a new order each epoch if they are shuffled."""

    def __init__(self, size: int, *, seed: int, shuffle: bool) -> None:
        assert size > 0
        self._size = size
        self._seed = seed
        self._shuffle = shuffle
        # A lease that goes back may be of the epoch before.
        self._order = lru_cache(maxsize=4)(self._make_order)

    def row(self, place: int) -> int:
        """The row at a place, from 0 on."""
        epoch, position = divmod(place, self._size)
        return int(self._order(epoch)[position])

    def _make_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(self._size)
        # Philox is defined to the bit, so an order is the same on every machine.
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
        return generator.permutation(self._size)


class PromptSampler:
    """The prompt of each group."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool) -> None:
        self._prompts = prompts
        self._order = EpochOrder(len(prompts), seed=seed, shuffle=shuffle)

    def prompt(self, group_id: int) -> Prompt:
        """The prompt of a group."""
        return self._prompts[self._order.row(group_id)]
