"""The norm, against torch's and finite differences."""

import pytest
import torch
from megatron.core.transformer import TransformerConfig

from learner.megatron.norm import RmsNorm


def norm(dtype: torch.dtype, size: int = 8) -> RmsNorm:
    """With weights that are not 1, and an ε that counts."""
    torch.manual_seed(0)
    module = RmsNorm(TransformerConfig(num_layers=1, hidden_size=size, num_attention_heads=1), size, 1e-2)
    torch.nn.init.normal_(module.weight)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_torch_s(dtype: torch.dtype) -> None:
    module, x = norm(dtype), torch.randn(5, 1, 3, 8).to(dtype)
    expected = torch.nn.functional.rms_norm(x.double(), (8,), module.weight.double(), 1e-2)
    bound = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 0.05}[dtype]
    assert module(x).dtype == dtype and (module(x) - expected).abs().max() < bound


def test_its_gradients() -> None:
    module = norm(torch.float64)

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(module, {"weight": weight}, (x,))
        return found

    x = torch.randn(5, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(normed, (x, module.weight))


def test_a_view_of_every_other_row_has_its_gradient() -> None:
    # Keys lie between queries and values.
    module, whole = norm(torch.float64), torch.randn(5, 3, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: module(x[..., 8:16]), whole)


def test_tokens_of_zeros_stay_zeros() -> None:
    module, x = norm(torch.float32), torch.zeros(2, 8, requires_grad=True)
    module(x).sum().backward()
    assert not module(x).any() and x.grad is not None and x.grad.isfinite().all()
