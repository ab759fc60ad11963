"""Importance weights: truncation, no gradient, agreement with the golden vectors and a plain loop."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.ratios import log_ratio
from correction.weights import WEIGHTINGS, truncated, unweighted
from tests.golden import Golden, golden_cases, golden_differences

TOKEN_LEVEL = [
    case
    for case in (
        *golden_cases("rollout_correction", is_level="token", is_batch_normalize=False, rs_modes=[]),
        *golden_differences("rollout_correction", "token_tis"),
        *golden_differences("rollout_correction", "empty_mask"),
    )
    if isinstance(case.options["is_threshold"], float)
]

tokens = st.lists(
    st.tuples(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.booleans(), st.sampled_from((math.nan, math.inf))),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("case", TOKEN_LEVEL, ids=repr)
def test_truncated_weights_are_golden(case: Golden) -> None:
    mask = case.input("mask")
    log_ratios = log_ratio(case.input("logprobs"), case.input("rollout_logprobs"), mask)
    case.check("weights", truncated(log_ratios, mask, case.options["is_threshold"]).weights)


def test_there_are_golden_cases() -> None:
    assert len(TOKEN_LEVEL) == 5


@given(tokens, st.floats(0.01, 100))
def test_truncated_weights_equal_a_plain_loop(row: list[tuple[float, float, bool, float]], cap: float) -> None:
    mask = torch.tensor([kept for *_, kept, _ in row])
    prox = torch.tensor([p if kept else poison for p, _, kept, poison in row], dtype=torch.float64)
    mu = torch.tensor([q if kept else -poison for _, q, kept, poison in row], dtype=torch.float64)
    got = truncated(log_ratio(prox, mu, mask), mask, cap)
    raw = [math.exp(max(-20.0, min(20.0, p - q))) if kept else 0.0 for p, q, kept, _ in row]
    assert got.weights.tolist() == pytest.approx([min(w, cap) for w in raw], rel=1e-9, abs=1e-12)
    assert got.truncated.tolist() == [w > cap for w in raw]


def test_equal_policies_weigh_one() -> None:
    logprobs, mask = torch.tensor([-0.1, -5.0, -30.0]), torch.ones(3, dtype=torch.bool)
    got = truncated(log_ratio(logprobs, logprobs, mask), mask, 2.0)
    assert got.weights.tolist() == [1.0, 1.0, 1.0]
    assert not got.truncated.any()


def test_off_weighs_every_trained_token_one_and_truncates_nothing() -> None:
    mask = torch.tensor([True, False, True])
    got = unweighted(torch.tensor([3.0, math.nan, -20.0]), mask, 2.0)
    assert got.weights.tolist() == [1.0, 0.0, 1.0]
    assert not got.truncated.any()


@pytest.mark.parametrize("name", sorted(WEIGHTINGS))
def test_weights_carry_no_gradient(name: str) -> None:
    log_ratios = torch.tensor([0.1, 2.0], requires_grad=True)
    assert not WEIGHTINGS[name](log_ratios, torch.tensor([True, True]), 2.0).weights.requires_grad
