"""Buckets: the same numbers as of the bucket by itself, and tokens that fall into none."""

import math

import pytest
import torch
from hypothesis import given

from correction.buckets import POSITION_EDGES, STALENESS_EDGES, Bucket, by_bucket
from correction.correction import Correction, correct
from correction.rejection import Criterion, CriterionLevel, Statistic
from correction.weights import Truncated
from tests.correction.batches import batches, corrections, tensors
from tests.correction.plain import Batch

TOKENS = Correction(
    weighting=Truncated(cap=2.0),
    criteria=(Criterion(level=CriterionLevel.token, statistic=Statistic.k2, high=0.5),),
)


@given(batches(min_width=1), corrections)
def test_one_bucket_of_everything_has_the_numbers_of_the_batch(batch: Batch, wanted: Correction) -> None:
    corrected = correct(*tensors(batch), wanted)
    (bucket,) = by_bucket(corrected, torch.zeros_like(corrected.given, dtype=torch.int64), (0,))
    diagnostics = corrected.diagnostics
    gap, weights = diagnostics.gap, diagnostics.weights
    assert bucket.token_share == bool(gap.num_tokens)
    got = (bucket.k1, bucket.k3, bucket.weight * weights.normalizer, bucket.ess)
    assert got == pytest.approx((gap.k1, gap.k3, weights.tokens.mean, weights.ess_token), rel=1e-9, abs=1e-9)
    assert bucket.bounded_share == pytest.approx(weights.truncated_share + weights.masked_share)
    assert bucket.rejected_share == pytest.approx(diagnostics.rejected.token_share)


@given(batches(min_width=2))
def test_a_bucket_has_the_numbers_of_its_tokens_alone(batch: Batch) -> None:
    prox, mu, mask = tensors(batch)
    positions = torch.arange(mask.shape[1])
    early, late = by_bucket(correct(prox, mu, mask, TOKENS), positions, (0, 2))
    for bucket, chosen in ((early, positions < 2), (late, positions >= 2)):
        part = correct(prox, mu, mask & chosen, TOKENS).diagnostics
        assert bucket.token_share == pytest.approx(part.gap.num_tokens / max(1, int(mask.sum())))
        assert (bucket.k1, bucket.k3) == pytest.approx((part.gap.k1, part.gap.k3), rel=1e-9, abs=1e-9)
        assert bucket.ess == pytest.approx(part.weights.ess_token, rel=1e-9)
        assert bucket.rejected_share == pytest.approx(part.rejected.token_share)


def test_old_tokens_are_told_from_young_ones() -> None:
    log_ratios = torch.tensor([[0.0, 0.0, 1.0, math.nan]])
    mask = log_ratios.isfinite()
    corrected = correct(log_ratios, torch.zeros(1, 4), mask, TOKENS)
    young, middle, old = by_bucket(corrected, torch.tensor([[0, 0, 7, 7]]), (0, 1, 5))
    assert (young.token_share, young.k1, young.weight, young.bounded_share) == pytest.approx((2 / 3, 0, 1, 0))
    assert (old.token_share, old.k1, old.weight, old.bounded_share) == pytest.approx((1 / 3, -1, 2, 1))
    assert middle == Bucket(
        low=1, high=4, token_share=0, k1=0, k3=0, weight=0, ess=0, bounded_share=0, rejected_share=0
    )


def test_buckets_are_called_by_what_falls_into_them() -> None:
    mask = torch.zeros(1, 1, dtype=torch.bool)
    corrected = correct(torch.zeros(1, 1), torch.zeros(1, 1), mask, TOKENS)
    staleness = by_bucket(corrected, torch.zeros(1, 1, dtype=torch.int64), STALENESS_EDGES)
    assert [bucket.label for bucket in staleness] == ["0", "1", "2", "3-4", "5-8", "9-16", "17+"]
    positions = by_bucket(corrected, torch.arange(1), POSITION_EDGES)
    assert [bucket.label for bucket in positions][:2] == ["0-63", "64-255"]


def test_edges_must_rise() -> None:
    corrected = correct(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), TOKENS)
    with pytest.raises(AssertionError):
        by_bucket(corrected, torch.zeros(1, dtype=torch.int64), (0, 2, 2))
