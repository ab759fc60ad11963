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

TOKENS_AT_ONCE = 2**16
"""In float32 256 KiB a tensor: few enough operations, and the tensors of a chunk live in a CPU's caches."""


def row_slices(mask: Tensor) -> Iterator[slice]:
    """The rows of [N, T] in chunks of about `TOKENS_AT_ONCE`, at least one even of nothing; on an accelerator, where
    the launch of a kernel costs more than the trip to memory, all at once."""
    num_rows, width = mask.shape
    step = max(1, TOKENS_AT_ONCE // max(1, width)) if mask.device.type == "cpu" else max(1, num_rows)
    for start in range(0, max(1, num_rows), step):
        yield slice(start, start + step)


def stack_rows(chunks: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """The fields of all chunks' records, each [n] a chunk, as [N] float64."""
    return [torch.cat(field).double() for field in zip(*chunks, strict=True)]


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Two policies on a chunk's tokens; all [n, T], 0 outside of the mask."""

    mask: Tensor
    """bool"""
    num_tokens: Tensor
    """[n] in the mask, float32 or wider."""
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
        indicator = mask.to(torch.promote_types(log_p.dtype, log_q.dtype))
        log_p, log_q = _choose(log_p, mask, indicator), _choose(log_q, mask, indicator)
        differences = log_p - log_q
        log_ratios = clamp_log(differences)
        growth = log_ratios.expm1()
        return cls(
            mask=mask,
            num_tokens=indicator.sum(-1),
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
        return values.sum(-1) / self.num_tokens.clamp(min=1)

    def scatter(self, values: Tensor, mean: Tensor) -> Tensor:
        """Sum of the squared deviations of each sequence's values [n, T], finite, from its mean [n]; [n]."""
        return (values - mean.unsqueeze(-1)).mul_(self.indicator).square_().sum(-1)

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


def _choose(values: Tensor, mask: Tensor, indicator: Tensor) -> Tensor:
    # A product is many times faster than a selection, and as good where there is no NaN and no infinity to keep out.
    return values * indicator if bool(values.sum().isfinite()) else zero_outside(values.to(indicator.dtype), mask)
