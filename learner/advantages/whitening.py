"""Advantages of mean 0 and variance 1 over all trained tokens of the batch.

Owns the formula, over a few rows at a time. A single token is its own mean, so it becomes 0; none stays none.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

import torch
from torch import Tensor

from correction.batch_memory import empty_batch
from correction.masked import count, zero_outside, zero_outside_
from correction.ratios import at_least_float32
from correction.row_chunks import row_chunks
from correction.spread import Moments

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


@torch.no_grad()
def _whiten(values: Tensor, mask: Tensor, out: Tensor, shift_mean: bool) -> Tensor:
    assert values.shape == mask.shape and mask.dtype == torch.bool, (values.shape, mask.shape, mask.dtype)
    parts = []
    for rows in row_chunks(mask):
        if out is values:
            kept = zero_outside_(values[rows], mask[rows])
        else:
            kept = zero_outside(at_least_float32(values[rows]), mask[rows], out=out[rows])
        parts.append(_sum_rows(kept, mask[rows]))
    num, means, scatters = torch.cat(parts, 1)
    moments = Moments.merged(num, means, scatters)
    mean, scale = float(moments.mean), float(moments.sample_variance(num.sum()) + EPS) ** -0.5
    for rows in row_chunks(mask):
        whitened = out[rows].sub_(mean).mul_(scale)
        if not shift_mean:
            whitened.add_(mean)
        zero_outside_(whitened, mask[rows])
    return out


def _sum_rows(values: Tensor, mask: Tensor) -> Tensor:
    """[3, n] float64 what `Moments.merged` takes of n rows: numbers, means, sums of squared deviations from them.

    Args:
        values: [n, T], 0 outside of the mask.
        mask: [n, T] bool.
    """
    num = count(mask, -1).double()
    # In double precision a mean of equal float32 is that number, and the square of any of them stays in range.
    means = values.sum(1, dtype=torch.float64) / num.clamp(min=1)
    deviations = zero_outside_(values - means.to(values.dtype)[:, None], mask).double()
    return torch.stack([num, means, deviations.square_().sum(1)])
