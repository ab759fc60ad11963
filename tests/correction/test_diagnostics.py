"""Diagnostics: golden values, bounds, and numbers for empty and extreme batches."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.diagnostics import diagnose_weights, effective_sample_size, policy_gap
from correction.ratios import log_ratio
from correction.weights import TokenWeights, truncated
from tests.golden import Golden, golden_cases

MEASURED = golden_cases("rollout_correction")
TRUNCATED = [
    case
    for case in golden_cases("rollout_correction", is_level="token", is_batch_normalize=False, rs_modes=[])
    if isinstance(case.options["is_threshold"], float)
]


@pytest.mark.parametrize("case", MEASURED, ids=repr)
def test_the_gap_of_the_policies_is_golden(case: Golden) -> None:
    gap = policy_gap(case.input("rollout_logprobs"), case.input("logprobs"), case.input("mask"))
    case.check_scalar("kl", gap.k1)
    case.check_scalar("k3_kl", gap.k3)


@pytest.mark.parametrize("case", TRUNCATED, ids=repr)
def test_the_effective_sample_size_is_golden(case: Golden) -> None:
    mask = case.input("mask")
    log_ratios = log_ratio(case.input("logprobs"), case.input("rollout_logprobs"), mask)
    got = diagnose_weights(truncated(log_ratios, mask, case.options["is_threshold"]), mask)
    case.check_scalar("rollout_is_eff_sample_size", got.ess)
    case.check_scalar("rollout_is_mean", got.mean)
    case.check_scalar("rollout_is_max", got.max)
    case.check_scalar("rollout_is_ratio_fraction_high", got.truncated_share)


@given(st.lists(st.tuples(st.floats(0, 1e30), st.booleans()), min_size=1, max_size=20))
def test_the_effective_sample_size_is_a_share(row: list[tuple[float, bool]]) -> None:
    weights = torch.tensor([w for w, _ in row], dtype=torch.float64)
    mask = torch.tensor([kept for _, kept in row])
    ess = effective_sample_size(weights, mask)
    has_weight = any(kept and w > 0 for w, kept in row)
    assert (1 / len(row) - 1e-9 <= ess <= 1 + 1e-9) if has_weight else ess == 0


def test_equal_weights_are_a_full_sample_and_a_single_one_is_one_of_many() -> None:
    mask = torch.ones(4, dtype=torch.bool)
    assert effective_sample_size(torch.full((4,), 0.3), mask) == pytest.approx(1.0)
    assert effective_sample_size(torch.tensor([0.0, 0.0, 5.0, 0.0]), mask) == pytest.approx(0.25)


@given(st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.booleans()), min_size=1, max_size=20))
def test_k3_is_never_negative_and_both_are_zero_for_equal_policies(row: list[tuple[float, float, bool]]) -> None:
    mu = torch.tensor([m if kept else math.nan for m, _, kept in row], dtype=torch.float64)
    prox = torch.tensor([p for _, p, _ in row], dtype=torch.float64)
    mask = torch.tensor([kept for *_, kept in row])
    assert policy_gap(mu, prox, mask).k3 >= 0
    assert policy_gap(mu, mu, mask) == (0.0, 0.0, 0.0)


def test_the_largest_gap_is_not_clamped() -> None:
    gap = policy_gap(torch.tensor([-0.5, -1.0]), torch.tensor([-100.0, -1.25]), torch.tensor([True, True]))
    assert gap.max_abs == pytest.approx(99.5)


def test_nothing_to_measure_is_all_zeros() -> None:
    mask, junk = torch.zeros(2, dtype=torch.bool), torch.tensor([math.nan, math.inf])
    assert policy_gap(junk, junk, mask) == (0.0, 0.0, 0.0)
    assert diagnose_weights(TokenWeights(torch.zeros(2), mask), mask) == (0.0, 0.0, 0.0, 0.0)
