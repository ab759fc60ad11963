"""How the losses of a mini-batch's tokens add up: one scale a sequence.

Owns the normalisers, which are of the whole mini-batch: the loss is Σ_i scale_i Σ_t l_it over the tokens that train,
so that the losses of micro-batches just add up, and no split of the rows changes loss or gradient. Must not know
what a token's loss is.

Legend: N sequences (one a row), T response positions; n_i trained tokens of sequence i.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    """What is counted over a whole mini-batch, whichever of its rows are at hand."""

    num_tokens: float
    """Tokens that train."""
    num_sequences: float
    """Rows with at least one of them."""
    length_norm: float
    """Constant length of `seq_mean_token_sum_norm`."""

    @classmethod
    def of(cls, mask: Tensor, length_norm: float) -> Self:
        """Counts a mini-batch's mask [N, T] bool."""
        assert mask.dtype == torch.bool and length_norm > 0, (mask.dtype, length_norm)
        return cls(
            num_tokens=int(mask.count_nonzero()),
            num_sequences=int(mask.any(1).count_nonzero()),
            length_norm=length_norm,
        )


Aggregation = Callable[[Tensor, BatchTotals], Tensor]
"""(mask [N, T] bool of any rows of the mini-batch, totals of all) → scale of each row [N] float64, never infinite."""


def token_mean(mask: Tensor, totals: BatchTotals) -> Tensor:
    """Every token has the same say: 1 / tokens."""
    return _constant(mask, 1 / max(totals.num_tokens, 1))


def token_sum(mask: Tensor, totals: BatchTotals) -> Tensor:
    """Nothing is divided."""
    del totals
    return _constant(mask, 1.0)


def seq_mean_token_mean(mask: Tensor, totals: BatchTotals) -> Tensor:
    """Every sequence has the same say, its tokens share it: 1 / (n_i · sequences)."""
    return seq_mean_token_sum(mask, totals) / mask.sum(1).clamp(min=1)


def seq_mean_token_sum(mask: Tensor, totals: BatchTotals) -> Tensor:
    """Long sequences count for more: 1 / sequences."""
    return _constant(mask, 1 / max(totals.num_sequences, 1))


def seq_mean_token_sum_norm(mask: Tensor, totals: BatchTotals) -> Tensor:
    """The same over a constant length, without the bias of a mean towards short sequences: 1 / (sequences · length).

    Dr. GRPO (https://arxiv.org/abs/2503.20783).
    """
    return seq_mean_token_sum(mask, totals) / totals.length_norm


def _constant(mask: Tensor, scale: float) -> Tensor:
    return torch.full((len(mask),), scale, dtype=torch.float64, device=mask.device)


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "token_sum": token_sum,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "seq_mean_token_sum_norm": seq_mean_token_sum_norm,
}
"""Keys are the words of `async_rl.config.objective.Aggregation`, but for `auto`, which is the surrogate's own."""
