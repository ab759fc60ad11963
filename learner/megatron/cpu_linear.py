"""Megatron's linear layers on the CPU.

Owns what stands in the place of its function between a layer and its matrix product: the same exchange between
tensor parallel ranks, around the products that are fastest here.

Legend: T tokens, I inputs and O outputs of a layer on this rank.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from torch import Tensor

from learner.products import multiply, multiply_transposed


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    tp_group: torch.distributed.ProcessGroup | None,
    grad_output_buffer: None = None,
    wgrad_deferral_limit: None = None,
) -> Tensor:
    """What Megatron's `linear_with_grad_accumulation_and_async_allreduce` does, for trained and frozen weights alike.

    Args:
        input: [..., I], or with sequence parallelism this rank's rows of it.
        weight: [O, I]
        bias: [O]
        gradient_accumulation_fusion, grad_output_buffer, wgrad_deferral_limit: not for CPUs.
        allreduce_dgrad: the input is the same on all tensor parallel ranks, and its gradient is to be.
        sequence_parallel: the input is spread over them.
        tp_group: these ranks.

    Returns:
        [..., O]
    """
    assert not gradient_accumulation_fusion and grad_output_buffer is None and wgrad_deferral_limit is None
    if sequence_parallel:
        input = gather_from_sequence_parallel_region(input, tensor_parallel_output_grad=True, group=tp_group)
    elif allreduce_dgrad:
        input = copy_to_tensor_model_parallel_region(input, group=tp_group)
    rows: Tensor = _Linear.apply(input.flatten(0, -2), weight)  # type: ignore[no-untyped-call]
    output = rows.view(*input.shape[:-1], weight.shape[0])
    return output if bias is None else output + bias


class _Linear(torch.autograd.Function):
    """input [T, I], weight [O, I] → [T, O]."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(input if weight.requires_grad else None, weight)
        return multiply(input, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        of_input = multiply(grad, weight.t()) if ctx.needs_input_grad[0] else None
        of_weight = multiply_transposed(grad, input) if ctx.needs_input_grad[1] else None
        return of_input, of_weight
