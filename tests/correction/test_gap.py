"""The gap of two policies: exact where they are near, finite where they are not."""

import math

import pytest
import torch

from tests.correction.batches import gap_of


def test_the_largest_gap_is_not_clamped() -> None:
    gap = gap_of(torch.tensor([[-100.0, -1.25]]), torch.tensor([[-0.5, -1.0]]), torch.tensor([[True, True]]))
    assert gap.max_abs == pytest.approx(99.5)


def test_policies_apart_by_less_than_float32_can_sum_are_still_told_apart() -> None:
    mu = torch.full((8, 4096), -1.0)
    noise = 1e-3 * torch.randn(8, 4096, generator=torch.Generator().manual_seed(0))
    prox = (mu + noise).float()
    x = (prox.double() - mu.double()).flatten()
    gap = gap_of(prox, mu, torch.ones_like(mu, dtype=torch.bool))
    assert gap.k1 == pytest.approx(float(-x.mean()), rel=1e-3)
    assert gap.k3 == pytest.approx(float((x.expm1() - x).mean()), rel=1e-4)
    assert gap.chi2_token == pytest.approx(float((2 * x).expm1().mean()), rel=1e-3)
    assert 1 - gap.ess_token == pytest.approx(float(x.exp().var(correction=0) / x.exp().mean() ** 2), rel=1e-3)


def test_ten_thousand_nats_are_a_number() -> None:
    prox, mu = torch.tensor([[-1e4, -1.0], [-1.0, -1e4]]), torch.tensor([[-1.0, -1e4], [-1.0, -1e4]])
    gap = gap_of(prox, mu, torch.ones(2, 2, dtype=torch.bool))
    assert gap.max_abs == pytest.approx(9999)
    assert gap.perplexity == pytest.approx(math.exp(20), rel=1e-6)
    assert all(math.isfinite(x) for x in (gap.k1, gap.k3, gap.chi2_token, gap.chi2_sequence, gap.perplexity_ratio))


def test_a_sequence_without_tokens_has_no_perplexity() -> None:
    logprobs = torch.tensor([[-2.0, -2.0], [math.nan, math.nan]])
    gap = gap_of(logprobs, logprobs, logprobs.isfinite())
    assert (gap.num_tokens, gap.num_sequences) == (2, 1)
    assert gap.perplexity == pytest.approx(math.exp(2))
    assert gap.log_perplexity == pytest.approx(2)
