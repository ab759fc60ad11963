"""Masked reductions: what a mask hides never leaks, and nothing reduces to 0."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correction.masked import count, masked_max, masked_mean, masked_min, masked_share, masked_sum, zero_outside

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


def test_masked_values_have_no_gradient() -> None:
    values = torch.tensor([1.0, math.nan, math.inf], requires_grad=True)
    mask = torch.tensor([True, False, False])
    masked_sum(zero_outside(values, mask).exp(), mask).backward()
    assert values.grad is not None
    assert values.grad.tolist() == [pytest.approx(math.e), 0.0, 0.0]


def test_share_counts_within_the_mask() -> None:
    share = masked_share(torch.tensor([True, True, False, True]), torch.tensor([True, False, True, True]))
    assert float(share) == pytest.approx(2 / 3)


def test_a_mask_must_be_boolean() -> None:
    with pytest.raises(AssertionError):
        zero_outside(torch.ones(2), torch.ones(2))
