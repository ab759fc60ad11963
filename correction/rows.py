"""A few rows of two policies at a time, and the sums that are made of them.

Everything that the correction reports is a function of sums over sequences. So one pass over the batch
makes weights, masks and those sums, chunk by chunk; the rest is arithmetic on [N] vectors in float64,
and no intermediate result has the size of the batch. Must not know what is summed.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import at_least_float32, clamp_log
from correction.row_chunks import SMALL_CHUNK_ELEMENTS, row_chunks


def token_chunks(mask: Tensor) -> Iterator[slice]:
    """The rows of a batch [N, T], as many at a time as one chunk of `TokenRows` may hold."""
    return row_chunks(mask, SMALL_CHUNK_ELEMENTS)


class SequenceTable:
    """What is summed of each sequence, chunk by chunk: columns [N] float64 for the fields of a record.

    Copied out of each chunk at once: kept as they are, its small tensors would outlive it and lie between the places
    that its large ones leave, so that those of the next chunk find none that fits and take new memory every time.
    """

    def __init__(self, mask: Tensor) -> None:
        self._num_rows = mask.shape[0]
        self._table: Tensor | None = None

    def put(self, where: slice, record: Sequence[Tensor]) -> None:
        """Keeps the fields, [n] each, of the sequences at `where`."""
        fields = torch.stack(tuple(record))
        if self._table is None:
            self._table = fields.new_empty(len(fields), self._num_rows, dtype=torch.float64)
        self._table[:, where] = fields

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """In the order of the fields."""
        assert self._table is not None
        return self._table.unbind()


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Two policies on a chunk's tokens; all [n, T], 0 outside of the mask."""

    mask: Tensor
    """bool"""
    num_tokens: Tensor
    """[n] in the mask, float32 or wider."""
    lengths: Tensor
    """The same, but 1 where there is none: what a mean divides by."""
    indicator: Tensor
    """The mask as 0 and 1: multiplies what is finite, many times faster than a selection."""
    exclusion: Tensor
    """0 in the mask, infinite outside: added to what is finite, it leaves the outside out of a minimum."""
    numerator: Tensor
    """log p, float32 or wider."""
    denominator: Tensor
    """log q."""
    log_differences: Tensor
    """log p/q as it is."""
    log_ratios: Tensor
    """log p/q, clamped."""
    growth: Tensor
    """p/q − 1, of the clamped log-ratio: exact near 0."""
    excess: Tensor
    """p/q − 1 − log p/q, as `ratios.excess`."""

    @classmethod
    def of(cls, numerator: Tensor, denominator: Tensor, mask: Tensor) -> Self:
        """Of log p and log q [n, T], whatever stands outside of the mask [n, T] bool."""
        log_p, log_q = at_least_float32(numerator), at_least_float32(denominator)
        dtype = torch.promote_types(log_p.dtype, log_q.dtype)
        log_p, log_q = zero_outside(log_p.to(dtype), mask), zero_outside(log_q.to(dtype), mask)
        indicator = mask.to(dtype)
        num_tokens = indicator.sum(-1)
        differences = log_p - log_q
        log_ratios = clamp_log(differences)
        growth = log_ratios.expm1()
        return cls(
            mask=mask,
            num_tokens=num_tokens,
            lengths=num_tokens.clamp(min=1),
            indicator=indicator,
            exclusion=(1 / indicator).sub_(1),
            numerator=log_p,
            denominator=log_q,
            log_differences=differences,
            log_ratios=log_ratios,
            growth=growth,
            excess=(growth - log_ratios).clamp_(min=0),
        )

    def count_above(self, values: Tensor, bound: float) -> Tensor:
        """How many of each sequence's values [n, T], 0 outside of the mask, pass a bound ≥ 0; [n]."""
        # Counted in the values' own type: by way of truth values it takes five times as long.
        return torch.gt(values, bound, out=torch.empty_like(values)).sum(-1)

    def count_below(self, values: Tensor, bound: float) -> Tensor:
        """How many of each sequence's values [n, T], 0 outside of the mask, stay below a bound; [n]."""
        num_below = torch.lt(values, bound, out=torch.empty_like(values)).sum(-1)
        return num_below - (values.shape[-1] - self.num_tokens) if bound > 0 else num_below

    def mean(self, values: Tensor) -> Tensor:
        """Of each sequence's values [n, T], 0 outside of the mask; [n], 0 where the mask is empty."""
        return values.sum(-1) / self.lengths

    def scatter(self, values: Tensor, mean: Tensor) -> Tensor:
        """Sum of the squared deviations of each sequence's values [n, T], finite, from its mean [n]; [n]."""
        return (values - mean.unsqueeze(-1)).mul_(self.indicator).square_().sum(-1)

    def peak(self, values: Tensor) -> Tensor:
        """Largest of each sequence's values [n, T] ≥ 0, which are 0 outside of the mask; [n]."""
        return values.amax(-1) if values.shape[-1] else torch.zeros_like(self.num_tokens)

    def least(self, values: Tensor) -> Tensor:
        """Smallest of each sequence's values [n, T], finite, in the mask; [n], 0 where it is empty."""
        if values.shape[-1] == 0:
            return torch.zeros_like(self.num_tokens)
        return (values + self.exclusion).amin(-1).where(self.num_tokens > 0, 0.0)

    def greatest(self, values: Tensor) -> Tensor:
        """Largest of each sequence's values [n, T], finite, in the mask; [n], 0 where it is empty."""
        if values.shape[-1] == 0:
            return torch.zeros_like(self.num_tokens)
        return (values - self.exclusion).amax(-1).where(self.num_tokens > 0, 0.0)
