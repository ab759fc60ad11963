"""A loss over rows, evaluated and differentiated a few rows at a time.

A loss of many small operations keeps a dozen tensors for its backward pass. Of a few rows they stay in a core's cache,
and of the batch only the gradient is kept. Owns that walk. Must not know any loss, but that each row's part depends on
that row alone.

Legend: N rows, n rows of a chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from correction.batch_memory import empty_batch
from correction.row_chunks import SMALL_CHUNK_ELEMENTS, row_chunks


class RowsLoss(NamedTuple):
    """What some rows add to the loss, and what there is to say of them."""

    loss: Tensor
    """Scalar with gradient."""
    reports: tuple[Tensor, ...]
    """[n, …] each, detached."""


RowsFunction = Callable[[slice, Sequence[Tensor | None]], RowsLoss]
"""(which rows, these rows of each input) → their loss."""


def loss_by_rows(function: RowsFunction, inputs: Sequence[Tensor | None]) -> RowsLoss:
    """The sum of the function's losses over all rows, with gradients for the inputs that want one.

    The gradients are computed here and only scaled in the backward pass, of which there can be one, and no second
    derivative.

    Args:
        function: of each row by itself.
        inputs: [N, T] each, the first not None.
    """
    first = inputs[0]
    assert first is not None
    wanted = [x is not None and x.requires_grad and torch.is_grad_enabled() for x in inputs]
    gradients = [empty_batch(x, x.dtype) for x, wants in zip(inputs, wanted, strict=True) if wants and x is not None]
    total = torch.zeros((), dtype=torch.float64, device=first.device)
    reports: list[Tensor] = []
    for rows in row_chunks(first, SMALL_CHUNK_ELEMENTS):
        leaves = [
            None if x is None else x.detach()[rows].requires_grad_(wants)
            for x, wants in zip(inputs, wanted, strict=True)
        ]
        with torch.set_grad_enabled(any(wanted)):
            part = function(rows, leaves)
        total += part.loss.detach()
        reports = reports or [_whole(report, first) for report in part.reports]
        for whole, own in zip(reports, part.reports, strict=True):
            whole[rows] = own
        if gradients:
            own_leaves = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
            for whole, own in zip(gradients, torch.autograd.grad(part.loss, own_leaves), strict=True):
                whole[rows] = own
    if gradients:
        differentiable = [x for x, wants in zip(inputs, wanted, strict=True) if wants]
        total = _WithGradients.apply(total, gradients, *differentiable)  # type: ignore[no-untyped-call]
    return RowsLoss(total, tuple(reports))


def _whole(chunk: Tensor, batch: Tensor) -> Tensor:
    """Memory for all rows [N, …] of what a chunk [n, …] is of some."""
    if chunk.shape[1:] == batch.shape[1:]:
        return empty_batch(batch, chunk.dtype)
    return chunk.new_empty((len(batch), *chunk.shape[1:]))


class _WithGradients(torch.autograd.Function):
    """A scalar whose gradients are known; they are handed out once, since a copy would be one more batch in memory."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        del inputs
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "a loss by rows has one backward pass"
        return (None, None, *(gradient.mul_(grad) for gradient in gradients))
