"""A batch's rows, a few at a time.

A formula of many small operations reads and writes memory once for each of them; over a few rows at a time, what it
makes on its way stays in a core's cache. Owns how many rows that is. Only for formulas that treat each row by itself.
"""

from collections.abc import Iterator

from torch import Tensor

CHUNK_ELEMENTS = 1 << 17
"""In float32 512 KiB. With half of it recurrences take 1.2 times as long: what an operation costs by itself counts
for more."""

SMALL_CHUNK_ELEMENTS = 1 << 16
"""For formulas that keep a dozen tensors of a chunk alive: as fast there, with half the memory."""

LARGE_CHUNK_ELEMENTS = 1 << 18
"""For one or two operations without temporaries, of which the overhead is all there is to save."""


def row_chunks(batch: Tensor, elements: int = CHUNK_ELEMENTS) -> Iterator[slice]:
    """The rows of [N, T], about so many elements at a time; elsewhere than on a CPU all at once.

    At least one slice, even of a batch without rows.
    """
    num_rows, width = batch.shape
    step = max(1, elements // max(1, width)) if batch.device.type == "cpu" else max(1, num_rows)
    for start in range(0, max(1, num_rows), step):
        yield slice(start, start + step)
