"""Pieces of a batch: every row once, also of nothing."""

import pytest
import torch

from correction.row_chunks import CHUNK_ELEMENTS, HUGE_BYTES, empty_batch, row_chunks


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1000, 700), (3, 10 * CHUNK_ELEMENTS), (5, 0), (0, 5)])
def test_every_row_comes_once_in_order(shape: tuple[int, int]) -> None:
    batch = torch.empty(shape, dtype=torch.bool)
    pieces = [list(range(shape[0]))[rows] for rows in row_chunks(batch)]
    assert pieces
    assert [row for piece in pieces for row in piece] == list(range(shape[0]))


def test_pieces_are_of_bounded_size() -> None:
    batch = torch.empty(1000, 700)
    sizes = [batch[rows].numel() for rows in row_chunks(batch)]
    assert max(sizes) <= CHUNK_ELEMENTS < max(sizes) + 700
    assert max(batch[rows].numel() for rows in row_chunks(batch, 2100)) == 2100


@pytest.mark.parametrize("num_rows", [0, 3, HUGE_BYTES // 1024 // 4])
def test_memory_is_of_the_shape_asked_for(num_rows: int) -> None:
    like = torch.empty(num_rows, 1024, dtype=torch.bool)
    result = empty_batch(like, torch.float32)
    assert result.shape == like.shape and result.dtype == torch.float32
    assert float(result.fill_(1.0).sum()) == like.numel()
