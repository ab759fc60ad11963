"""The walk over rows: the same as all at once, whatever the size of the pieces."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from learner.losses.by_rows import RowsLoss, loss_by_rows


def squares(rows: slice, inputs: Sequence[Tensor | None]) -> RowsLoss:
    """Σ x²·y, and x's sign."""
    x, y = inputs
    assert x is not None
    terms = x.square() if y is None else x.square() * y
    return RowsLoss(terms.sum().double(), (x.detach() > 0, x.detach().sum(1)))


@pytest.mark.parametrize("shape", [(300, 2000), (3, 400_000), (5, 3), (0, 3), (3, 0)])
def test_pieces_add_up(shape: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=random, requires_grad=True) for _ in range(2))
    got = loss_by_rows(squares, (x, y))
    (3 * got.loss).backward()
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(got.loss.detach(), (x.square() * y).sum().double().detach(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(x.grad, (6 * x * y).detach())
    torch.testing.assert_close(y.grad, (3 * x.square()).detach())
    assert torch.equal(got.reports[0], x > 0) and got.reports[1].shape == shape[:1]


def test_inputs_that_are_absent_or_want_no_gradient_get_none() -> None:
    x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    loss_by_rows(squares, (x, y)).loss.backward()
    assert x.grad is not None and y.grad is None
    assert float(loss_by_rows(squares, (x, None)).loss.detach()) == 4
    assert not loss_by_rows(squares, (y, None)).loss.requires_grad
    with torch.no_grad():
        assert not loss_by_rows(squares, (x, y)).loss.requires_grad


def test_a_second_backward_pass_is_refused() -> None:
    loss = loss_by_rows(squares, (torch.ones(1, 1, requires_grad=True), None)).loss
    loss.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="one backward pass"):
        loss.backward()
