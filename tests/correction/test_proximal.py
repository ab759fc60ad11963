"""The log-linear stand-in for π_prox: its two ends, its middle, and what must not reach it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.proximal import log_linear_proximal

ALL = torch.ones(1, 4, dtype=torch.bool)


def test_the_anchor_lies_one_version_behind_on_the_line_from_the_version_that_sampled() -> None:
    pi, mu = torch.full((1, 4), -3.0), torch.full((1, 4), -1.0)
    got = log_linear_proximal(pi, mu, torch.tensor([[0, 1, 3, 4]]), ALL)
    assert got.tolist() == [[-1.0, -2.0, -2.5, pytest.approx(-2.6)]]


@given(st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.integers(0, 100)), min_size=1, max_size=10))
def test_it_equals_the_published_formula(row: list[tuple[float, float, int]]) -> None:
    pi, mu = (torch.tensor([[cell[i] for cell in row]], dtype=torch.float64) for i in (0, 1))
    got = log_linear_proximal(pi, mu, torch.tensor([[d for *_, d in row]]), torch.ones(1, len(row), dtype=torch.bool))
    # Published for the distance of μ from the version in the making, d + 1.
    want = [q + ((d + 1) - 1) / (d + 1) * (p - q) for p, q, d in row]
    assert got.tolist() == [pytest.approx(want, rel=1e-9, abs=1e-9)]


def test_junk_under_the_mask_and_gradients_stay_out() -> None:
    pi = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    got = log_linear_proximal(
        pi, torch.tensor([[-2.0, math.inf]]), torch.tensor([[3, -9]]), torch.tensor([[True, False]])
    )
    assert got.tolist() == [[pytest.approx(-5 / 4), 0.0]]
    assert not got.requires_grad


def test_equal_policies_have_themselves_between_them() -> None:
    logprobs = torch.tensor([[-0.3, -7.0, -30.0, -0.01]])
    assert torch.equal(log_linear_proximal(logprobs, logprobs, torch.tensor([[0, 1, 7, 50]]), ALL), logprobs)


def test_half_precision_is_raised() -> None:
    logprobs = torch.tensor([[-1.0]], dtype=torch.bfloat16)
    got = log_linear_proximal(logprobs, logprobs, torch.tensor([[2]]), torch.tensor([[True]]))
    assert got.dtype == torch.float32
