"""What a mask keeps, faster than `masked.zero_outside` where no gradient flows.

Owns the trick: a number's bits, as an integer, times 0 or 1. What the mask hides (NaN and infinity included) is
gone, and nothing waits for a branch that was guessed wrong.

Legend: N sequences, T tokens.
"""

import torch
from torch import Tensor

from correction.row_chunks import LARGE_CHUNK_ELEMENTS, row_chunks

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Of the same width."""


def keep(values: Tensor, mask: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`values` where the mask, 0 elsewhere; detached.

    Args:
        values: [N, T] float32 or float64.
        mask: [N, T] bool.
        out: where the result goes, [N, T] of the same dtype; not `values` itself (`keep_`).
    """
    assert mask.dtype == torch.bool and values.shape == mask.shape, (mask.dtype, values.shape, mask.shape)
    integers = INTEGERS[values.dtype]
    kept = mask.to(integers) if out is None else out.view(integers).copy_(mask)
    return kept.mul_(values.detach().view(integers)).view(values.dtype)


def keep_(values: Tensor, mask: Tensor) -> Tensor:
    """`keep` in place."""
    assert mask.dtype == torch.bool and values.shape == mask.shape, (mask.dtype, values.shape, mask.shape)
    values.detach().view(INTEGERS[values.dtype]).mul_(mask)
    return values


def sum_in_row(values: Tensor, mask: Tensor) -> Tensor:
    """[N, T] float32 or float64 → [N], the sum over the mask; detached."""
    sums = values.new_empty(len(values))
    scratch: Tensor | None = None
    for rows in row_chunks(mask, LARGE_CHUNK_ELEMENTS):
        part = values[rows]
        # The last piece may be shorter than the first.
        scratch = torch.empty_like(part) if scratch is None else scratch[: len(part)]
        torch.sum(keep(part, mask[rows], out=scratch), 1, out=sums[rows])
    return sums


def count_in_row(mask: Tensor) -> Tensor:
    """[N, T] bool → [N] int32: `mask.sum(1)` without a copy of the mask as int64."""
    return mask.sum(1, dtype=torch.int32)


def any_in_row(mask: Tensor) -> Tensor:
    """[N, T] bool → [N] bool: `mask.any(1)`, twenty times as fast on a CPU."""
    if mask.shape[1] == 0:
        return mask.new_zeros(len(mask))
    return mask.view(torch.uint8).amax(1).bool()
