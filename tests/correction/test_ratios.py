"""Log-ratios: one clamp, half precision raised, masked tokens exactly 0."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.ratios import (
    LEVELS,
    LOG_RATIO_BOUND,
    excess,
    log_difference,
    log_ratio,
    number_segments,
    ratio,
    starts_segment,
)
from tests.correction.batches import batches, tensors
from tests.correction.plain import Batch, shared

ALL = torch.tensor([True])


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4))
def test_a_ratio_is_finite_and_positive_for_any_log_probabilities(log_p: float, log_q: float) -> None:
    log_ratios = log_ratio(torch.tensor([log_p]), torch.tensor([log_q]), ALL)
    assert abs(float(log_ratios)) <= LOG_RATIO_BOUND
    assert 0 < float(ratio(log_ratios)) < math.inf


@pytest.mark.parametrize(("log_p", "expected"), [(-math.inf, -20.0), (1e4, 20.0), (-1e4, -20.0), (0.5, 0.5)])
def test_extreme_differences_are_clamped(log_p: float, expected: float) -> None:
    assert log_ratio(torch.tensor([log_p]), torch.tensor([0.0]), ALL).tolist() == [expected]


def test_the_gradient_is_zero_where_the_clamp_binds_and_under_the_mask() -> None:
    log_p = torch.tensor([0.5, 30.0, math.nan], requires_grad=True)
    log_q = torch.tensor([0.0, 0.0, -math.inf])
    ratio(log_ratio(log_p, log_q, torch.tensor([True, True, False]))).sum().backward()
    assert log_p.grad is not None
    assert log_p.grad.tolist() == [pytest.approx(math.exp(0.5)), 0.0, 0.0]


def test_half_precision_is_raised_before_it_is_subtracted() -> None:
    log_p, log_q = torch.tensor([-3.0], dtype=torch.bfloat16), torch.tensor([-3.001])
    assert log_ratio(log_p, log_q, ALL).dtype == torch.float32
    assert float(log_ratio(log_p, log_q, ALL)) == pytest.approx(0.001, abs=1e-6)
    assert log_ratio(log_p.double(), log_q.double(), ALL).dtype == torch.float64


@given(st.floats(-20, 20))
def test_the_excess_is_never_negative_and_exact_near_zero(x: float) -> None:
    got = float(excess(torch.tensor([x], dtype=torch.float64)))
    assert got >= 0
    assert got == pytest.approx(math.expm1(x) - x, rel=1e-12, abs=0)


def test_the_excess_of_a_small_log_ratio_is_half_its_square_in_float32() -> None:
    assert float(excess(torch.tensor([1e-3]))) == pytest.approx(0.5e-6, rel=1e-2)


@given(batches(largest=1e4), st.sampled_from(sorted(LEVELS)))
def test_every_level_equals_a_plain_loop(batch: Batch, level: str) -> None:
    prox, mu, mask = tensors(batch)
    got = ratio(LEVELS[level](log_difference(prox, mu, mask), mask))
    assert torch.equal(got[~mask], torch.ones_like(got[~mask]))
    for values, row in zip(got.tolist(), batch.log_ratios, strict=True):
        for run, expected in shared(row, level):
            assert [values[t] for t in run] == pytest.approx([expected] * len(run), rel=1e-9)


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_a_shared_ratio_has_a_gradient_for_each_token_that_shares_it(level: str) -> None:
    log_p = torch.tensor([[-1.0, math.nan, -2.0, -3.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True, True]])
    LEVELS[level](log_difference(log_p, torch.full_like(log_p, -2.0), mask), mask).sum().backward()
    assert log_p.grad is not None
    wanted = {"token": [1, 0, 1, 1], "segment": [1, 0, 2, 2], "sequence": [3, 0, 3, 3], "geometric": [1, 0, 1, 1]}
    assert log_p.grad.tolist() == [pytest.approx(wanted[level])]


def test_segments_are_the_runs_between_holes() -> None:
    mask = torch.tensor([[False, True, True, False, True], [True, False, True, True, True]])
    assert starts_segment(mask).tolist() == [[False, True, False, False, True], [True, False, True, False, False]]
    assert number_segments(mask)[mask].tolist() == [1, 1, 2, 3, 4, 4, 4]
