"""The value loss: a plain loop, any mask, any split."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.losses.value import value_loss
from tests.learner.losses.draws import poisons

Valued = tuple[float, float, float, bool]
numbers = st.floats(-5, 5)
valued = st.tuples(numbers, numbers, numbers, st.booleans())
"""(v, R, v at the batch's start, kept)"""


def plain(token: Valued, clip: float) -> tuple[float, float, bool]:
    """(loss, derivative by v, whether the clip made it larger)"""
    v, target, old, _ = token
    held = min(max(v, old - clip), old + clip) if clip else v
    if (held - target) ** 2 > (v - target) ** 2:
        return (held - target) ** 2 / 2, held - target if held == v else 0.0, True
    return (v - target) ** 2 / 2, v - target, False


@given(st.lists(st.tuples(valued, valued, valued), min_size=1, max_size=4), st.sampled_from([0.0, 0.2, 1.0]), poisons)
def test_it_equals_a_plain_loop_whatever_the_mask_hides(
    rows: list[tuple[Valued, ...]], clip: float, poison: float
) -> None:
    mask = torch.tensor([[t[3] for t in row] for row in rows])
    v, returns, old = (
        torch.tensor([[t[i] if t[3] else poison for t in row] for row in rows], dtype=torch.float64) for i in range(3)
    )
    scales = torch.arange(1, len(rows) + 1, dtype=torch.float64)
    v.requires_grad_()
    got = value_loss(v, returns, old, mask, scales, clip=clip)
    got.loss.backward()
    want = [[plain(t, clip) if t[3] else (0.0, 0.0, False) for t in row] for row in rows]
    total = sum((i + 1) * loss for i, row in enumerate(want) for loss, _, _ in row)
    assert float(got.loss.detach()) == pytest.approx(total, rel=1e-9, abs=1e-9)
    assert v.grad is not None
    slopes = torch.tensor([[(i + 1) * slope for _, slope, _ in row] for i, row in enumerate(want)], dtype=torch.float64)
    torch.testing.assert_close(v.grad, slopes, rtol=1e-9, atol=1e-9)
    assert got.clipped.tolist() == [[flag for *_, flag in row] for row in want]
    assert got.values.equal(v) or not mask.all()


def test_a_clip_of_0_is_none() -> None:
    v = torch.tensor([[3.0]], requires_grad=True)
    got = value_loss(v, torch.zeros(1, 1), torch.full((1, 1), 9.0), torch.tensor([[True]]), torch.ones(1), clip=0)
    got.loss.backward()
    assert (float(got.loss.detach()), bool(got.clipped)) == (4.5, False)
    assert v.grad is not None and float(v.grad) == 3.0


def test_rows_add_up() -> None:
    random = torch.Generator().manual_seed(0)
    v, returns, old = (torch.randn(4, 5, generator=random) for _ in range(3))
    mask, scales = torch.rand(4, 5, generator=random) < 0.7, torch.rand(4, generator=random).double()
    whole = value_loss(v, returns, old, mask, scales, clip=0.2).loss
    parts = [
        value_loss(v[s], returns[s], old[s], mask[s], scales[s], clip=0.2).loss for s in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)
