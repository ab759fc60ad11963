"""The norm of Megatron's local layers, which may stand between ranks that share a sequence.

Owns its gradient, in few passes over memory, of which torch's own makes many, and the mark that Megatron's wrapper of
torch's norm refuses: by it the gradient of a weight, of which each of these ranks has a part, is summed over them.

Legend: D size of what is normed.
"""

from typing import Any

import torch
from megatron.core.transformer import TransformerConfig
from torch import Tensor


class RmsNorm(torch.nn.RMSNorm):
    """Root Mean Square Layer Normalization (arXiv:1910.07467), as Megatron builds it from a layer spec."""

    eps: float

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] → [..., D], normed in float32 or wider."""
        normed: Tensor = _RmsNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


class _RmsNorm(torch.autograd.Function):
    """x [..., D], w [D] → y = w x r with r = 1 / √(mean(x²) + ε).

    With h = w · ∂L/∂y the gradient of x is r (h − x r · mean(h x r)). That of a layer norm whose mean happens to be 0
    has r · mean(h) less.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _widened(x)
        scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return torch.mul(wide, scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        wide_grad, wide_weight = _widened(grad), _widened(weight)
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            wide_grad,
            _widened(x),
            [x.shape[-1]],
            torch.zeros_like(scale),
            scale,
            wide_weight,
            None,
            [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False],
        )
        if of_x is not None:
            mean = torch.mv(wide_grad.flatten(0, -2), wide_weight).view_as(scale).div_(x.shape[-1])
            of_x = of_x.add_(mean.mul_(scale)).to(x.dtype)
        return of_x, None if of_weight is None else of_weight.to(weight.dtype), None


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
