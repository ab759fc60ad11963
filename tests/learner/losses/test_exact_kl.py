"""The KL over the vocabulary: against autograd, in pieces, and where probabilities are 0."""

import math

import pytest
import torch

from learner.losses import exact_kl as module
from learner.losses.exact_kl import exact_kl


def log_distributions(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    log_p, log_q = (torch.randn(shape, generator=random, dtype=dtype).log_softmax(-1) for _ in range(2))
    return log_p.requires_grad_(), log_q


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7), (2, 0, 7)])
def test_value_and_gradient_are_those_of_the_sum(shape: tuple[int, ...]) -> None:
    log_p, log_q = log_distributions(shape)
    got, want = exact_kl(log_p, log_q), (log_p.exp() * (log_p - log_q)).sum(-1)
    assert got.shape == shape[:-1]
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    seed = torch.arange(got.numel(), dtype=torch.float64).view_as(got) - 1.5
    for ours, theirs in zip(torch.autograd.grad(got, log_p, seed), torch.autograd.grad(want, log_p, seed), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_through_a_softmax_the_gradient_is_that_of_the_logits() -> None:
    logits = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    log_q = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64).log()
    assert torch.autograd.gradcheck(lambda z: exact_kl(z.log_softmax(-1), log_q), (logits,))


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log_p, log_q = log_distributions((50, 11), torch.float32)
    whole = exact_kl(log_p, log_q)
    (want,) = torch.autograd.grad(whole.sum(), log_p)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 33)
    pieces = exact_kl(log_p, log_q)
    assert torch.equal(pieces, whole)
    assert torch.equal(torch.autograd.grad(pieces.sum(), log_p)[0], want)


def test_a_probability_of_0_counts_0() -> None:
    log_p = torch.tensor([-math.inf, 0.0], requires_grad=True)
    kl = exact_kl(log_p, torch.tensor([-math.inf, -1.0]))
    kl.backward()
    assert kl.item() == 1.0
    assert log_p.grad is not None and log_p.grad.tolist() == [0.0, 2.0]


def test_half_precision_sums_in_float32() -> None:
    log_p, log_q = log_distributions((3, 7))
    half = exact_kl(log_p.detach().bfloat16(), log_q.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), exact_kl(log_p, log_q).detach(), rtol=0.05, atol=0.05)


def test_equal_distributions_are_at_0() -> None:
    log_p, _ = log_distributions((3, 7))
    assert exact_kl(log_p, log_p.detach()).tolist() == [0.0] * 3
