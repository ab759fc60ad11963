"""Masked reductions: the only reductions anywhere in the correction and the losses.

Owns what a mask means: a position outside of it holds no data, so nothing of it (NaN and infinity
included) reaches a result or a gradient, and a reduction over nothing is 0, not NaN. Must not know
what the values are.

Legend: T tokens.
"""

import torch
from torch import Tensor


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where `mask`, 0 elsewhere.

    Selects, never multiplies: 0·∞ is NaN. Select inputs, before any function of them: the gradient
    of a selected NaN result would still be 0·NaN.

    Args:
        values: [T] floating point.
        mask: [T] bool.
    """
    assert mask.dtype == torch.bool and values.shape == mask.shape, (mask.dtype, values.shape, mask.shape)
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over the mask, scalar."""
    return zero_outside(values, mask).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the mask, scalar; 0 where the mask is empty."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Largest value in the mask, scalar; 0 where the mask is empty."""
    chosen = values[mask]
    return chosen.max() if chosen.numel() else torch.zeros((), dtype=values.dtype, device=values.device)


def masked_share(condition: Tensor, mask: Tensor) -> Tensor:
    """Share of the mask's positions where `condition` [T] bool holds, float32 scalar; 0 where the mask is empty."""
    assert condition.dtype == torch.bool, condition.dtype
    return (condition & mask).sum().float() / mask.sum().clamp(min=1)
