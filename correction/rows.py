"""A few rows of two policies at a time, and the sums that are made of them.

Everything that the correction reports is a function of sums over sequences. So one pass over the batch
makes weights, masks and those sums, chunk by chunk; the rest is arithmetic on [N] vectors in float64,
and no intermediate result has the size of the batch. Must not know what is summed.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import at_least_float32, clamp_log


def stack_rows(chunks: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """The fields of all chunks' records, each [n] a chunk, as [N] float64."""
    return [torch.cat(field).double() for field in zip(*chunks, strict=True)]


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Two policies on a chunk's tokens; all [n, T], 0 outside of the mask."""

    mask: Tensor
    """bool"""
    indicator: Tensor
    """The mask as 0 and 1: multiplies what is finite, many times faster than a selection."""
    numerator: Tensor
    """log p, float32 or wider."""
    denominator: Tensor
    """log q."""
    log_differences: Tensor
    """log p/q as it is."""
    log_ratios: Tensor
    """log p/q, clamped."""

    @classmethod
    def of(cls, numerator: Tensor, denominator: Tensor, mask: Tensor) -> Self:
        """Of log p and log q [n, T], whatever stands outside of the mask [n, T] bool."""
        log_p = zero_outside(at_least_float32(numerator), mask)
        log_q = zero_outside(at_least_float32(denominator), mask)
        differences = log_p - log_q
        return cls(
            mask=mask,
            indicator=mask.to(differences.dtype),
            numerator=log_p,
            denominator=log_q,
            log_differences=differences,
            log_ratios=clamp_log(differences),
        )
