"""Advantages of mean 0 and variance 1 over all trained tokens of the batch.

Owns the moments of masked tokens. A single token is its own mean, so it becomes 0; none stays none.

Legend: N sequences, T tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from correction.batch_memory import empty_batch
from correction.masked import count, zero_outside, zero_outside_
from correction.ratios import at_least_float32
from correction.row_chunks import row_chunks

EPS = 1e-8
"""Added to the variance."""


def whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """(x − mean)/√(var + `EPS`) over the mask, with the (n − 1) variance; 0 outside.

    Args:
        values: [N, T] floating point, anything outside of the mask.
        mask: [N, T] bool.
        shift_mean: False adds the mean back.

    Returns:
        [N, T], float32 or wider, detached.
    """
    return _whiten(values, mask, empty_batch(mask, at_least_float32(values[:0]).dtype), shift_mean)


def whiten_(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """`whiten` in place, of float32 or wider."""
    return _whiten(values, mask, values, shift_mean)


class Moments(NamedTuple):
    """Mean and (n − 1) variance over a mask; 0 where there is none."""

    mean: float
    variance: float


class RowMoments(NamedTuple):
    """Of rows of tokens, so that they pool without a loss of digits (Chan, Golub and LeVeque, 1983); float64."""

    counts: Tensor
    """[N]"""
    means: Tensor
    """[N]"""
    squares: Tensor
    """[N] Σ(x − the row's mean)²."""

    @classmethod
    def of(cls, values: Tensor, mask: Tensor) -> Self:
        """Of values [N, T] that are 0 outside of the mask [N, T] bool."""
        counts = count(mask, -1).double()
        # In double precision a mean of equal float32 is that number, and the square of any of them stays in range.
        means = values.sum(1, dtype=torch.float64) / counts.clamp(min=1)
        deviations = zero_outside_(values - means.to(values.dtype)[:, None], mask).double()
        return cls(counts, means, deviations.square_().sum(1))

    @classmethod
    def pool(cls, parts: Sequence[Self]) -> Moments:
        """Of all tokens of all rows."""
        counts, means, squares = (torch.cat(column) for column in zip(*parts, strict=True))
        count = counts.sum()
        mean = (counts * means).sum() / count.clamp(min=1)
        square = squares.sum() + (counts * (means - mean).square()).sum()
        return Moments(float(mean), float(square / (count - 1).clamp(min=1)))


@torch.no_grad()
def _whiten(values: Tensor, mask: Tensor, out: Tensor, shift_mean: bool) -> Tensor:
    assert values.shape == mask.shape and mask.dtype == torch.bool, (values.shape, mask.shape, mask.dtype)
    moments = []
    for rows in row_chunks(mask):
        if out is values:
            kept = zero_outside_(values[rows], mask[rows])
        else:
            kept = zero_outside(at_least_float32(values[rows]), mask[rows], out=out[rows])
        moments.append(RowMoments.of(kept, mask[rows]))
    whole = RowMoments.pool(moments)
    scale = (whole.variance + EPS) ** -0.5
    for rows in row_chunks(mask):
        whitened = out[rows].sub_(whole.mean).mul_(scale)
        if not shift_mean:
            whitened.add_(whole.mean)
        zero_outside_(whitened, mask[rows])
    return out
