"""Log-ratios: one clamp, half precision raised, masked tokens exactly 0."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.ratios import LOG_RATIO_BOUND, excess, log_ratio, ratio

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
