"""Weightings: bounds, what they flag, and no gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.weights import OFF, Masked, Truncated, Weighting
from tests.correction.batches import weightings
from tests.correction.plain import weigh

ratios = st.lists(st.tuples(st.floats(math.exp(-20), math.exp(20)), st.booleans()), min_size=1, max_size=20)


@given(ratios, weightings)
def test_weights_equal_a_plain_loop(row: list[tuple[float, bool]], weighting: Weighting) -> None:
    mask = torch.tensor([[kept for _, kept in row]])
    values = torch.tensor([[ratio if kept else 0.0 for ratio, kept in row]], dtype=torch.float64)
    got = weighting.weigh(values, mask)
    assert got.weights.tolist() == [[weigh(ratio, weighting) if kept else 0.0 for ratio, kept in row]]
    bounded = [[kept and weigh(ratio, weighting) != ratio for ratio, kept in row]]
    assert got.bounded.tolist() == (bounded if weighting != OFF else [[False] * len(row)])


def test_truncated_weights_lie_between_the_bounds() -> None:
    mask = torch.tensor([[True, True, True, False]])
    got = Truncated(cap=2.0, floor=0.5).weigh(torch.tensor([[0.25, 1.0, 4.0, 0.0]]), mask)
    assert got.weights.tolist() == [[0.5, 1.0, 2.0, 0.0]]
    assert got.bounded.tolist() == [[True, False, True, False]]


def test_masked_weights_are_the_ratio_or_nothing() -> None:
    mask = torch.tensor([[True, True, True, False]])
    got = Masked(floor=0.5, cap=2.0).weigh(torch.tensor([[0.25, 1.5, 4.0, 0.0]]), mask)
    assert got.weights.tolist() == [[0.0, 1.5, 0.0, 0.0]]
    assert got.bounded.tolist() == [[True, False, True, False]]


def test_off_weighs_every_token_of_the_mask_one() -> None:
    got = OFF.weigh(torch.tensor([[9.0, 0.0, 0.1]]), torch.tensor([[True, False, True]]))
    assert got.weights.tolist() == [[1.0, 0.0, 1.0]]
    assert not got.bounded.any()


@pytest.mark.parametrize(
    "weighting", [OFF, Truncated(cap=2.0), Truncated(cap=2.0, floor=0.5), Masked(floor=0.5, cap=2.0)]
)
def test_weights_carry_no_gradient(weighting: Weighting) -> None:
    ratios = torch.tensor([[0.1, 3.0]], requires_grad=True)
    assert not weighting.weigh(ratios, torch.tensor([[True, True]])).weights.requires_grad


def test_low_and_high_are_beyond_the_bounds_or_beyond_the_caps_inverse() -> None:
    assert Truncated(cap=4.0).marks == (0.25, 4.0)
    assert Truncated(cap=4.0, floor=0.5).marks == (0.5, 4.0)
    assert Masked(floor=0.5, cap=5.0).marks == (0.5, 5.0)
    assert OFF.marks == (0.0, math.inf)


def test_another_cap_brings_the_floor_down_with_it() -> None:
    assert Truncated(cap=4.0, floor=0.5).with_cap(0.2) == Truncated(cap=0.2, floor=0.2)
    assert Masked(floor=0.5, cap=4.0).with_cap(3.0) == Masked(floor=0.5, cap=3.0)
    assert OFF.with_cap(3.0) == OFF


@pytest.mark.parametrize(("floor", "cap"), [(3.0, 2.0), (-1.0, 2.0), (0.0, 0.0)])
def test_bounds_must_make_sense(floor: float, cap: float) -> None:
    with pytest.raises(AssertionError):
        Truncated(cap=cap, floor=floor)
    with pytest.raises(AssertionError):
        Masked(cap=cap, floor=floor)
