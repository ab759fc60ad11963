"""The gated activation of Megatron's local layers.

Owns it with its gradient, in as few passes over memory as torch's kernels allow. Knows nothing of the layers around it.

Legend: F outputs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu


def swiglu(x: Tensor) -> Tensor:
    """SwiGLU (arXiv:2002.05202) without its matrices: [..., 2 F], gates before what they open, → [..., F]."""
    output: Tensor = _SwiGlu.apply(x)  # type: ignore[no-untyped-call]
    return output


class _SwiGlu(torch.autograd.Function):
    """x = [g, u] → silu(g) u."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, opened = x.chunk(2, dim=-1)
        return silu(gate).mul_(opened)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate, opened = x.chunk(2, dim=-1)
        of_x = torch.empty_like(x)
        of_gate, of_opened = of_x.chunk(2, dim=-1)
        torch.ops.aten.silu_backward(grad * opened, gate, grad_input=of_gate)
        torch.mul(silu(gate), grad, out=of_opened)
        return of_x
