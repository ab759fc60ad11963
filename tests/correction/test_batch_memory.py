"""Memory of a batch's size: what was asked for, small or large."""

import pytest
import torch

from correction.batch_memory import HUGE_BYTES, empty_batch


@pytest.mark.parametrize("num_rows", [0, 3, HUGE_BYTES // 1024 // 4])
def test_memory_is_of_the_shape_asked_for_and_can_be_written(num_rows: int) -> None:
    like = torch.empty(num_rows, 1024, dtype=torch.bool)
    result = empty_batch(like, torch.float32)
    assert result.shape == like.shape and result.dtype == torch.float32
    assert float(result.fill_(1.0).sum()) == like.numel()


def test_two_results_share_nothing() -> None:
    like = torch.empty(HUGE_BYTES // 1024 // 4, 1024, dtype=torch.bool)
    first, second = (empty_batch(like, torch.float32).fill_(value) for value in (1.0, 2.0))
    assert float(first.amax()) == 1 and float(second.amin()) == 2
