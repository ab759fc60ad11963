"""Masks: what they hide never leaks, and nothing reduces to 0."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.masked import (
    any_in_row,
    count,
    masked_max,
    masked_mean,
    masked_min,
    masked_share,
    masked_sum,
    sum_in_row,
    zero_outside,
    zero_outside_,
)
from correction.row_chunks import LARGE_CHUNK_ELEMENTS

POISON = (math.nan, math.inf, -math.inf)

rows = st.lists(
    st.tuples(st.floats(-1e6, 1e6, width=32), st.booleans(), st.sampled_from(POISON)), min_size=1, max_size=30
)


@given(rows)
def test_reductions_see_only_the_mask_whatever_stands_outside(row: list[tuple[float, bool, float]]) -> None:
    mask = torch.tensor([kept for _, kept, _ in row])
    values = torch.tensor([x if kept else poison for x, kept, poison in row], dtype=torch.float64)
    kept = [x for x, is_kept, _ in row if is_kept]
    assert float(masked_sum(values, mask)) == pytest.approx(math.fsum(kept), rel=1e-9, abs=1e-6)
    assert float(masked_mean(values, mask)) == pytest.approx(math.fsum(kept) / max(1, len(kept)), rel=1e-9, abs=1e-6)
    assert float(masked_max(values, mask)) == max(kept, default=0.0)
    assert float(masked_min(values, mask)) == min(kept, default=0.0)


@given(st.integers(0, 3), rows)
def test_a_dimension_is_reduced_row_by_row(num_rows: int, row: list[tuple[float, bool, float]]) -> None:
    mask = torch.tensor([[kept for _, kept, _ in row]] * num_rows, dtype=torch.bool).view(num_rows, len(row))
    values = torch.tensor([[x if kept else poison for x, kept, poison in row]] * num_rows).view(num_rows, len(row))
    for reduce in (masked_sum, masked_mean, masked_max, masked_min):
        each = [float(reduce(v, m)) for v, m in zip(values, mask, strict=True)]
        assert torch.equal(reduce(values, mask, -1), torch.tensor(each))
    assert count(mask, -1).tolist() == [sum(kept for _, kept, _ in row)] * num_rows


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_nothing_reduces_to_zeros(shape: tuple[int, int]) -> None:
    values, mask = torch.empty(shape), torch.empty(shape, dtype=torch.bool)
    for reduce in (masked_sum, masked_mean, masked_max, masked_min):
        assert reduce(values, mask) == 0
        assert reduce(values, mask, -1).tolist() == [0.0] * shape[0]


def test_an_empty_mask_reduces_to_zero() -> None:
    values, mask = torch.tensor([math.nan, math.inf]), torch.tensor([False, False])
    assert masked_sum(values, mask) == masked_mean(values, mask) == masked_max(values, mask) == 0
    assert masked_share(torch.tensor([True, True]), mask) == 0


VALUES = [[1.5, math.nan, -2.0, math.inf], [-math.inf, -0.5, math.nan, 3e4]]
MASK = torch.tensor([[True, False, True, False], [False, True, False, True]])
KEPT = [[1.5, 0.0, -2.0, 0.0], [0.0, -0.5, 0.0, 3e4]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_selection_is_the_same_anew_elsewhere_and_in_place(dtype: torch.dtype) -> None:
    values, out = torch.tensor(VALUES, dtype=dtype), torch.full((2, 4), math.nan, dtype=dtype)
    assert zero_outside(values, MASK).tolist() == KEPT
    assert zero_outside(values, MASK, out=out).data_ptr() == out.data_ptr() and out.tolist() == KEPT
    assert zero_outside_(values, MASK) is values and values.tolist() == KEPT


def test_what_is_not_finite_inside_of_the_mask_stays() -> None:
    kept = zero_outside(torch.tensor([[math.nan, math.inf]]), torch.tensor([[True, True]]))
    assert kept[0, 0].isnan() and kept[0, 1].isinf()


def test_one_number_may_stand_for_a_whole_row() -> None:
    rows = torch.tensor([[1.0], [2.0]]).expand(2, 4)
    assert zero_outside(rows, MASK).tolist() == [[1.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 2.0]]


def test_masked_values_have_no_gradient() -> None:
    values = torch.tensor([1.0, math.nan, math.inf], requires_grad=True)
    mask = torch.tensor([True, False, False])
    masked_sum(zero_outside(values, mask).exp(), mask).backward()
    assert values.grad is not None
    assert values.grad.tolist() == [pytest.approx(math.e), 0.0, 0.0]


def test_a_sum_in_rows_is_of_all_rows_however_many_at_a_time() -> None:
    num_rows = 2 * LARGE_CHUNK_ELEMENTS // 1000 + 7
    values = torch.full((num_rows, 1000), math.nan)
    mask = torch.zeros(num_rows, 1000, dtype=torch.bool)
    values[:, 5], values[:, 8], mask[:, 5], mask[:, 8] = torch.arange(float(num_rows)), 0.5, True, True
    assert torch.equal(sum_in_row(values, mask), torch.arange(float(num_rows)) + 0.5)
    assert sum_in_row(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)).tolist() == [0.0, 0.0]


def test_a_row_has_any_position_or_none() -> None:
    assert any_in_row(torch.tensor([[False, False], [False, True], [True, True]])).tolist() == [False, True, True]
    assert any_in_row(torch.zeros(2, 0, dtype=torch.bool)).tolist() == [False, False]


def test_share_counts_within_the_mask() -> None:
    share = masked_share(torch.tensor([True, True, False, True]), torch.tensor([True, False, True, True]))
    assert float(share) == pytest.approx(2 / 3)


def test_a_mask_must_be_boolean() -> None:
    for select in (zero_outside, zero_outside_):
        with pytest.raises(AssertionError):
            select(torch.ones(2), torch.ones(2))
