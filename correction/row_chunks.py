"""Pieces of a batch that stay in a core's cache from one operation to the next, and memory for the whole.

A formula of many small operations reads and writes memory once for each; row by row, in pieces, it does so once
for all. Owns the size of a piece. Only for formulas that treat each row by itself.
"""

import mmap
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 17
"""In float32 512 KiB. Smaller ones fit a second-level cache better, but then what an operation costs by itself counts
for more."""

LARGE_CHUNK_ELEMENTS = 1 << 20
"""In float32 4 MiB, for two or three operations: a third-level cache is near enough to them."""

HUGE_BYTES = 1 << 23
"""Four huge pages of the usual 2 MiB. Blocks of this size malloc may keep for the next that asks, or give back to the
system and take anew: which of them depends on all that the process has done before. Smaller ones it keeps."""

REUSED_BYTES = 1 << 22
"""Temporaries of a piece are smaller, also as int64."""


def row_chunks(batch: Tensor, elements: int = CHUNK_ELEMENTS) -> Iterator[slice]:
    """The rows of [N, T] in pieces of about so many elements, at least one even of nothing; elsewhere than on a CPU
    all at once."""
    num_rows, width = batch.shape
    step = max(1, num_rows)
    if batch.device.type == "cpu":
        step = max(1, elements // max(1, width))
        _reuse_freed_memory()
    for start in range(0, max(1, num_rows), step):
        yield slice(start, start + step)


@cache
def _reuse_freed_memory() -> None:
    """glibc's malloc maps each larger block anew, page by page, until it has once freed one of that size; from then on
    it keeps them. Without this, a piece's temporaries cost more than what is done with them."""
    torch.empty(REUSED_BYTES, dtype=torch.uint8)


def empty_batch(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result of the same shape and device, not filled; in huge pages where it is large.

    The first touch of new memory costs as much as a dozen arithmetic operations on it, most of that for each page.
    """
    size = like.numel() * dtype.itemsize
    if like.device.type != "cpu" or size < HUGE_BYTES:
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(like.shape)
