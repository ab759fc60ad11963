"""Which words of a vocabulary this rank has, where several ranks share them.

Owns `VocabularyShard`, the seam between the maths of logits and a process group. Knows no process group itself.

Legend: M tokens, F numbers of each, P ranks that share a vocabulary, V its words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from torch import Tensor

Gather = Callable[[Tensor], Tensor]
"""[…] of this rank to [P, …] of all that share the vocabulary, in the order of their words; without gradient."""


@dataclass(frozen=True, kw_only=True)
class VocabularyShard:
    """Neighbouring words: those from `first` on, `size` of them."""

    first: int
    size: int
    """Of true words: rows of a weight behind them are padding. May be 0."""
    gather: Gather

    @classmethod
    def whole(cls, size: int) -> Self:
        """Of the only rank."""
        return cls(first=0, size=size, gather=lambda mine: mine[None])

    @classmethod
    def of_rank(cls, rank: int, *, num_rows: int, vocab_size: int, gather: Gather) -> Self:
        """Of one rank of several with as many rows of weight each, of which the last are padding.

        Args:
            rank: among those that share the vocabulary.
            num_rows: of this rank's weight.
            vocab_size: V
            gather: see `Gather`.
        """
        first = rank * num_rows
        return cls(first=first, size=min(max(vocab_size - first, 0), num_rows), gather=gather)
