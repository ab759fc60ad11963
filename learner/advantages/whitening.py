"""Advantages of mean 0 and variance 1 over all trained tokens of the batch.

Owns the moments of masked tokens. Fewer than two tokens have no variance: they are told from nothing by their mean
alone, so a single one becomes 0, and none stays none.

Legend: N sequences, T tokens.
"""

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import at_least_float32
from correction.row_chunks import row_chunks

EPS = 1e-8
"""Added to the variance."""


@torch.no_grad()
def whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True, out: Tensor | None = None) -> Tensor:
    """(x − mean)/√(var + `EPS`) over the mask, with the (n − 1) variance; 0 outside.

    Args:
        values: [N, T] floating point, anything outside of the mask.
        mask: [N, T] bool.
        shift_mean: False adds the mean back.
        out: where the result goes, [N, T] of the result's dtype; may be `values` itself.

    Returns:
        [N, T], float32 or wider.
    """
    assert values.shape == mask.shape and mask.dtype == torch.bool, (values.shape, mask.shape, mask.dtype)
    if out is None:
        out = torch.empty_like(values, dtype=at_least_float32(values[:0]).dtype)
    mean, variance = masked_moments(values, mask)
    scale = 1 / (variance + EPS) ** 0.5
    for rows in row_chunks(values):
        chunk = zero_outside(at_least_float32(values[rows]), mask[rows])
        whitened = (chunk - mean) * scale
        if not shift_mean:
            whitened += mean
        out[rows] = zero_outside(whitened, mask[rows])
    return out


def masked_moments(values: Tensor, mask: Tensor) -> tuple[float, float]:
    """Mean and (n − 1) variance over the mask; 0 where there is none."""
    chosen = values[mask].double()
    if chosen.numel() == 0:
        return 0.0, 0.0
    return float(chosen.mean()), float(chosen.var()) if chosen.numel() > 1 else 0.0
