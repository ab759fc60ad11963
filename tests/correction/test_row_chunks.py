"""Rows a few at a time: every row once, also of nothing."""

import pytest
import torch

from correction.row_chunks import CHUNK_ELEMENTS, row_chunks


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1000, 700), (3, 10 * CHUNK_ELEMENTS), (5, 0), (0, 5)])
def test_every_row_comes_once_in_order(shape: tuple[int, int]) -> None:
    batch = torch.empty(shape, dtype=torch.bool)
    chunks = [list(range(shape[0]))[rows] for rows in row_chunks(batch)]
    assert chunks
    assert [row for chunk in chunks for row in chunk] == list(range(shape[0]))


def test_chunks_are_of_bounded_size() -> None:
    batch = torch.empty(1000, 700)
    sizes = [batch[rows].numel() for rows in row_chunks(batch)]
    assert max(sizes) <= CHUNK_ELEMENTS < max(sizes) + 700
    assert max(batch[rows].numel() for rows in row_chunks(batch, 2100)) == 2100
