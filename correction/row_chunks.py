"""Pieces of a batch that stay in a core's cache from one operation to the next.

A formula of many small operations reads and writes memory once for each; row by row, in pieces, it does so once
for all. Owns the size of a piece. Only for formulas that treat each row by itself.
"""

from collections.abc import Iterator

from torch import Tensor

CHUNK_ELEMENTS = 1 << 15
"""In float32 128 KiB: half a dozen such pieces fit into a second-level cache of 1 MiB."""


def row_chunks(batch: Tensor) -> Iterator[slice]:
    """The rows of [N, T] in pieces of about `CHUNK_ELEMENTS`, at least one even of nothing; elsewhere than on a CPU
    all at once."""
    num_rows, width = batch.shape
    step = max(1, CHUNK_ELEMENTS // max(1, width)) if batch.device.type == "cpu" else max(1, num_rows)
    for start in range(0, max(1, num_rows), step):
        yield slice(start, start + step)
