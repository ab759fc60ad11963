"""Masked reductions: the only reductions anywhere in the correction and the losses.

Owns what a mask means: a position outside of it holds no data, so nothing of it (NaN and infinity
included) reaches a result or a gradient, and a reduction over nothing is 0, not NaN. Must not know
what the values are.

Every reduction takes tensors of any shape and gives a scalar, or with `dim` what is left without that
dimension: `dim=-1` of [N, T] is a number a sequence.

Legend: N sequences, T tokens.
"""

import math

import torch
from torch import Tensor


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where `mask`, 0 elsewhere.

    Selects, never multiplies: 0·∞ is NaN. Select inputs, before any function of them: the gradient
    of a selected NaN result would still be 0·NaN.

    Args:
        values: [...] floating point.
        mask: [...] bool, of the same shape.
    """
    assert mask.dtype == torch.bool and values.shape == mask.shape, (mask.dtype, values.shape, mask.shape)
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def count(mask: Tensor, dim: int | None = None) -> Tensor:
    """How many positions the mask [...] bool holds, int64."""
    assert mask.dtype == torch.bool, mask.dtype
    # A sum of truth values makes integers of all of them first.
    return mask.count_nonzero() if dim is None else mask.sum(dim)


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the mask."""
    chosen = zero_outside(values, mask)
    return chosen.sum() if dim is None else chosen.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the mask; 0 where the mask is empty."""
    return masked_sum(values, mask, dim) / count(mask, dim).clamp(min=1)


def masked_max(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Largest value in the mask; 0 where the mask is empty."""
    return -masked_min(-values, mask, dim)


def masked_min(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Smallest value in the mask; 0 where the mask is empty."""
    assert mask.dtype == torch.bool and values.shape == mask.shape, (mask.dtype, values.shape, mask.shape)
    if values.shape[dim if dim is not None else 0] == 0 or values.numel() == 0:
        return masked_sum(values, mask, dim)
    chosen = values.masked_fill(~mask, math.inf)
    if dim is None:
        return torch.where(mask.any(), chosen.amin(), 0.0)
    return torch.where(mask.any(dim), chosen.amin(dim), 0.0)


def masked_share(condition: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Share of the mask's positions where `condition` [...] bool holds, float64; 0 where the mask is empty."""
    assert condition.dtype == torch.bool, condition.dtype
    return count(condition & mask, dim).double() / count(mask, dim).clamp(min=1)
