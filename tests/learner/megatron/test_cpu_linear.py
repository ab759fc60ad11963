"""The linear layer on one rank, against torch's; on several it is held to one by the tests of layouts."""

import pytest
import torch

from learner.megatron.cpu_linear import linear


def apply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return linear(
        x,
        weight,
        bias,
        gradient_accumulation_fusion=False,
        allreduce_dgrad=False,
        sequence_parallel=False,
        tp_group=None,
    )


@pytest.mark.parametrize("shape", [(7, 1, 6), (0, 6), (1, 6)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_output_and_gradients_are_those_of_torch(shape: tuple[int, ...], with_bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    weight = torch.randn(9, 6, requires_grad=True)
    bias = torch.randn(9, requires_grad=True) if with_bias else None
    leaves = [x, weight] if bias is None else [x, weight, bias]
    found, expected = apply(x, weight, bias), torch.nn.functional.linear(x, weight, bias)
    assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
    grad = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
    ):
        assert ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5)


def test_a_frozen_weight_gets_no_gradient_and_lets_its_input_s_through() -> None:
    x, weight = torch.randn(3, 6, requires_grad=True), torch.randn(9, 6)
    apply(x, weight, None).sum().backward()
    assert weight.grad is None and x.grad is not None
    assert torch.allclose(x.grad, weight.sum(0).expand(3, 6), atol=1e-5)


def test_an_input_without_gradient_costs_none() -> None:
    x, weight = torch.randn(3, 6), torch.randn(9, 6, requires_grad=True)
    apply(x, weight, None).sum().backward()
    assert x.grad is None and weight.grad is not None
    assert torch.allclose(weight.grad, x.sum(0).expand(9, 6), atol=1e-5)
