"""Selecting by bits: the same as selecting, whatever stands outside of the mask."""

import math

import pytest
import torch

from correction.masked import zero_outside
from correction.row_chunks import LARGE_CHUNK_ELEMENTS
from correction.selection import any_in_row, count_in_row, keep, keep_, sum_in_row

VALUES = [[1.5, math.nan, -2.0, math.inf], [-math.inf, -0.0, math.nan, 3e38]]
MASK = torch.tensor([[True, False, True, False], [False, True, False, True]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_a_select(dtype: torch.dtype) -> None:
    values = torch.tensor(VALUES, dtype=dtype)
    want = zero_outside(values, MASK)
    assert torch.equal(keep(values, MASK), want)
    out = torch.full_like(values, math.nan)
    assert keep(values, MASK, out=out).data_ptr() == out.data_ptr() and torch.equal(out, want)
    assert torch.equal(keep_(values, MASK), want) and torch.equal(values, want)


def test_what_is_not_finite_inside_of_the_mask_stays() -> None:
    kept = keep(torch.tensor([[math.nan, math.inf]]), torch.tensor([[True, True]]))
    assert kept[0, 0].isnan() and kept[0, 1].isinf()


def test_a_value_for_a_whole_row_may_be_one_number() -> None:
    rows = torch.tensor([[1.0], [2.0]]).expand(2, 4)
    assert keep(rows, MASK).tolist() == [[1.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 2.0]]


def test_rows_are_reduced() -> None:
    assert sum_in_row(torch.tensor(VALUES), MASK).tolist() == [-0.5, pytest.approx(3e38)]
    assert count_in_row(MASK).tolist() == [2, 2]
    assert any_in_row(torch.tensor([[False, False], [False, True]])).tolist() == [False, True]


def test_rows_of_nothing() -> None:
    nothing = torch.zeros(2, 0, dtype=torch.bool)
    assert sum_in_row(torch.zeros(2, 0), nothing).tolist() == [0.0, 0.0]
    assert count_in_row(nothing).tolist() == [0, 0]
    assert any_in_row(nothing).tolist() == [False, False]


def test_a_sum_of_many_pieces_is_of_all_rows() -> None:
    num_rows = 2 * LARGE_CHUNK_ELEMENTS // 1000 + 7
    values = torch.arange(float(num_rows))[:, None].expand(num_rows, 1000).contiguous()
    mask = torch.zeros(num_rows, 1000, dtype=torch.bool)
    mask[:, 5] = True
    assert torch.equal(sum_in_row(values, mask), torch.arange(float(num_rows)))


def test_results_are_detached() -> None:
    assert not keep(torch.ones(2, 4, requires_grad=True), MASK).requires_grad
