"""Which prompt the n-th group has.

Owns the order of prompts. Stateless: the group's id and the seed decide, so the cursor of a checkpoint is one
number (how many groups were issued), and a restart can issue any group again.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from async_rl.protocol import Prompt


class PromptSampler:
    """All prompts once an epoch, in a new order each epoch if they are shuffled."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool) -> None:
        assert prompts
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        # A lease that goes back may be of the epoch before.
        self._order = lru_cache(maxsize=4)(self._make_order)

    def prompt(self, group_id: int) -> Prompt:
        """The prompt of a group."""
        epoch, position = divmod(group_id, len(self._prompts))
        return self._prompts[int(self._order(epoch)[position])]

    def _make_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(len(self._prompts))
        # Philox is defined to the bit, so an order is the same on every machine.
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
        return generator.permutation(len(self._prompts))
