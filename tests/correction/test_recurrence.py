"""The reverse scan: a plain loop in float64, one number for all coefficients, and what leaves the range."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from correction.recurrence import reverse_scan, reverse_scan_

shapes = st.tuples(st.integers(0, 4), st.integers(0, 40))


def looped(coefficients: Tensor, terms: Tensor) -> Tensor:
    """The definition, step by step."""
    result, following = torch.zeros_like(terms), torch.zeros(len(terms), dtype=terms.dtype)
    for t in reversed(range(terms.shape[1])):
        following = terms[:, t] + coefficients[:, t] * following
        result[:, t] = following
    return result


@given(shapes, st.integers(0, 1000))
def test_it_equals_a_loop(shape: tuple[int, int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    terms = torch.randn(shape, generator=generator, dtype=torch.float64)
    coefficients = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.2
    assert torch.allclose(reverse_scan(coefficients, terms), looped(coefficients, terms), rtol=1e-12, atol=1e-12)


@given(shapes, st.floats(0, 1), st.integers(0, 1000))
def test_one_coefficient_equals_many_equal_ones(shape: tuple[int, int], decay: float, seed: int) -> None:
    terms = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got = reverse_scan(decay, terms)
    assert torch.allclose(got, looped(torch.full_like(terms, decay), terms), rtol=1e-12, atol=1e-12)


def test_a_sum_and_a_halving() -> None:
    terms = torch.tensor([[1.0, 2.0, 4.0]])
    assert reverse_scan(1.0, terms).tolist() == [[7.0, 6.0, 4.0]]
    assert reverse_scan(0.5, terms).tolist() == [[3.0, 4.0, 4.0]]
    assert reverse_scan(0.0, terms).tolist() == [[1.0, 2.0, 4.0]]


def test_a_coefficient_of_zero_separates_what_follows() -> None:
    terms, coefficients = torch.tensor([[1.0, 1.0, 1e30, 1e30]]), torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    assert reverse_scan(coefficients, terms)[0, :2].tolist() == [2.0, 1.0]


def test_terms_stay_unless_asked_for_in_place() -> None:
    terms = torch.tensor([[1.0, 2.0]])
    reverse_scan(1.0, terms)
    assert terms.tolist() == [[1.0, 2.0]]
    assert reverse_scan_(1.0, terms) is terms
    assert terms.tolist() == [[3.0, 2.0]]


def test_products_out_of_range_make_no_nan_of_zeros() -> None:
    terms = torch.zeros(1, 500)
    terms[0, 100] = 1.0
    got = reverse_scan(torch.full((1, 500), 3.0), terms)
    assert got[0, 101:].tolist() == [0.0] * 399
    assert got[0, 99] == 3.0
    assert not got.isnan().any()


def test_long_rows_lose_no_digits() -> None:
    got = reverse_scan(1.0, torch.full((1, 100_000), 0.1))
    assert float(got[0, 0]) == pytest.approx(1e4, rel=1e-6)


def test_no_gradient_flows() -> None:
    terms = torch.ones(1, 3, requires_grad=True)
    assert not reverse_scan(0.9, terms).requires_grad
    assert math.isfinite(float(reverse_scan(0.9, terms).sum()))
