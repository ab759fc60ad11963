"""Sequences with their holes closed, so that the token after a token is the next one that trains.

Owns where each token goes and comes back from. What a recurrence over time needs: with the holes closed, skipping an
environment's turn is no special case. Masks without holes (every one a prefix of its row) cost a select and no more.

Legend: N sequences, T tokens.
"""

from typing import Self

import torch
from torch import Tensor

from correction.masked import count, zero_outside
from correction.ratios import at_least_float32


class Compaction:
    """A mask's tokens, moved to the left of their rows and back."""

    def __init__(self, mask: Tensor, slots: Tensor | None) -> None:
        """Use `of` or `unmoved`."""
        self._mask = mask
        self._slots = slots
        """[N, T] int64: where each token goes, counted from 1; 0 for what the mask hides. None: tokens stay."""

    @classmethod
    def of(cls, mask: Tensor) -> Self:
        """
        Args:
            mask: [N, T] bool.
        """
        assert mask.dtype == torch.bool and mask.ndim == 2, (mask.dtype, mask.shape)
        starts = mask[:, 1:] > mask[:, :-1]
        if starts.numel() == 0 or not starts.view(torch.uint8).amax():
            return cls.unmoved(mask)
        # Narrow as long as possible: an index has to be int64, and that is twice the memory of what it moves.
        ones = mask.int()
        return cls(mask, ones.cumsum(1, dtype=torch.int32).mul_(ones).long())

    @classmethod
    def unmoved(cls, mask: Tensor) -> Self:
        """The same interface, where tokens stay in their places and holes stay open."""
        return cls(mask, None)

    @property
    def packed_mask(self) -> Tensor:
        """[N, T] bool: where `pack` puts tokens."""
        if self._slots is None:
            return self._mask
        return torch.arange(self._mask.shape[1], device=self._mask.device) < self.ends[:, None]

    @property
    def ends(self) -> Tensor:
        """[N] int64: the place after the last token that trains, 0 in a row without any."""
        if self._slots is not None:
            return count(self._mask, -1).long()
        width = self._mask.shape[1]
        places = torch.arange(1, width + 1, device=self._mask.device)
        return (self._mask * places).amax(1) if width else places.new_zeros(len(self._mask))

    def pack(self, values: Tensor) -> Tensor:
        """[N, T] floating point → [N, T], the tokens to the left of their rows and 0 after them; new memory, detached,
        float32 or wider."""
        values = at_least_float32(values.detach())
        if self._slots is None:
            return zero_outside(values, self._mask)
        num_rows, width = values.shape
        packed = values.new_zeros(num_rows, width + 1).scatter_(1, self._slots, values)
        return packed[:, 1:]

    def unpack(self, packed: Tensor, *, out: Tensor | None = None) -> Tensor:
        """[N, T] → [N, T], every token back in its place and 0 outside of the mask.

        Args:
            packed: [N, T]; what stands after a row's tokens is no data.
            out: where the result goes, [N, T]; not `packed`.
        """
        if self._slots is None:
            return zero_outside(packed, self._mask, out=out)
        # What the mask hides reads the 0 in front.
        return torch.gather(torch.nn.functional.pad(packed, (1, 0)), 1, self._slots, out=out)
