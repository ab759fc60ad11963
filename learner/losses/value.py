"""The critic's loss: squared error to the returns, clipped around the values of the batch's start.

Owns the formula. Pure: sees the tensors of one micro-batch. Must not know how returns are made.

Legend: N sequences (one a row), T response positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import at_least_float32
from learner.losses.by_rows import RowsLoss, loss_by_rows


class ValueLossResult(NamedTuple):
    """The loss of one micro-batch, and what there is to say of its tokens (detached)."""

    loss: Tensor
    """Scalar float64 with gradient."""
    values: Tensor
    """[N, T] as they were given: no data outside of the mask."""
    clipped: Tensor
    """[N, T] bool: the clip made the loss larger, and took the gradient if the value had moved away."""


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, mask: Tensor, row_scales: Tensor, *, clip: float
) -> ValueLossResult:
    """½·max((v − R)², (v_clip − R)²), with v_clip = v held within `clip` of the value at the batch's start.

    PPO's (https://arxiv.org/abs/1707.06347), as its authors' code has it.

    Args:
        values: [N, T] with gradient; anything outside of the mask, as everywhere here.
        returns: [N, T].
        old_values: [N, T] at the batch's start.
        mask: [N, T] bool.
        row_scales: [N] float64 of an aggregation.
        clip: 0 turns it off.
    """
    shapes = (values.shape, returns.shape, old_values.shape, mask.shape)
    assert len(set(shapes)) == 1 and row_scales.shape == mask.shape[:1], (shapes, row_scales.shape)

    def rows_loss(rows: slice, inputs: Sequence[Tensor | None]) -> RowsLoss:
        (own,) = inputs
        assert own is not None
        v, r, old = (zero_outside(at_least_float32(x), mask[rows]) for x in (own, returns[rows], old_values[rows]))
        errors = (v - r).square()
        clipped = torch.zeros_like(mask[rows])
        if clip > 0:
            errors_clipped = (v.clamp(old - clip, old + clip) - r).square()
            clipped = errors_clipped > errors
            errors = torch.where(clipped, errors_clipped, errors)
        return RowsLoss(0.5 * (errors.sum(1).double() * row_scales[rows]).sum(), (clipped,))

    loss, (clipped,) = loss_by_rows(rows_loss, (values,))
    return ValueLossResult(loss, values.detach(), clipped)
