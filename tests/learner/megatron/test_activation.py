"""The gated activation, against its formula and finite differences."""

import torch

from learner.megatron.activation import swiglu


def test_the_first_half_gates_the_second() -> None:
    gate, opened = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
    expected = gate * torch.sigmoid(gate) * opened
    assert torch.allclose(swiglu(torch.cat([gate, opened], dim=-1)), expected, atol=1e-6)


def test_its_gradient() -> None:
    torch.manual_seed(0)
    assert torch.autograd.gradcheck(swiglu, torch.randn(5, 3, 8, dtype=torch.float64, requires_grad=True))


def test_it_keeps_bfloat16() -> None:
    x = torch.randn(5, 8).bfloat16().requires_grad_()
    swiglu(x).sum().backward()
    assert swiglu(x).dtype == torch.bfloat16 and x.grad is not None and x.grad.dtype == torch.bfloat16
