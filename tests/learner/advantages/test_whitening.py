"""Whitening: the definition in float64, and batches with nothing to whiten."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.advantages.whitening import EPS, whiten, whiten_
from tests.learner.advantages.batches import drawn_tokens, masks


@given(masks(), st.sampled_from([0.0, 1.0, -1e3]), st.booleans(), st.integers(0, 1000))
def test_it_is_the_definition(mask: Tensor, offset: float, shift_mean: bool, seed: int) -> None:
    values = drawn_tokens(mask, seed, low=offset - 2, high=offset + 2)
    got = whiten(values, mask, shift_mean=shift_mean)
    chosen = values[mask]
    if len(chosen) > 1:
        mean = chosen.mean()
        chosen = (chosen - mean) / (chosen.var() + EPS).sqrt() + (0.0 if shift_mean else mean)
    elif shift_mean:
        chosen = torch.zeros_like(chosen)
    assert torch.allclose(got[mask], chosen, rtol=1e-9, atol=1e-9)
    assert got[~mask].tolist() == [0.0] * int((~mask).sum())


def test_in_place_is_the_same() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    values = torch.tensor([[1.0, 2.0, math.nan], [6.0, math.inf, math.nan]])
    want = whiten(values, mask)
    assert whiten_(values, mask) is values
    assert torch.equal(values, want)
    assert values[0].tolist() == pytest.approx([-0.7559, -0.3780, 0.0], abs=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_numbers_of_any_size_are_whitened(size: float) -> None:
    values, mask = torch.tensor([[-size, size]]), torch.ones(1, 2, dtype=torch.bool)
    want = size / math.sqrt(2 * size * size + EPS)
    assert whiten(values, mask)[0].tolist() == pytest.approx([-want, want], rel=1e-6)


def test_equal_numbers_are_exactly_nothing() -> None:
    values, mask = torch.full((300, 70), 0.1), torch.ones(300, 70, dtype=torch.bool)
    assert not whiten(values, mask).any()


def test_one_token_and_none() -> None:
    values = torch.tensor([[3.0, math.nan]])
    assert whiten(values, torch.tensor([[True, False]])).tolist() == [[0.0, 0.0]]
    assert whiten(values, torch.tensor([[True, False]]), shift_mean=False).tolist() == [[3.0, 0.0]]
    assert whiten(values, torch.tensor([[False, False]])).tolist() == [[0.0, 0.0]]
    assert whiten(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0)


def test_half_precision_gives_float32() -> None:
    got = whiten(torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16), torch.ones(1, 2, dtype=torch.bool))
    assert got.dtype == torch.float32
