"""Sequences laid end to end in one row, so that a micro-batch has no padding.

Owns `PackedSequences` and which sequences share a micro-batch. Knows nothing of losses or models.

Legend: T tokens of a micro-batch, S sequences in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, kw_only=True)
class PackedSequences:
    """A micro-batch: S sequences end to end; attention and positions start anew at each."""

    token_ids: torch.Tensor
    """[T] int64."""
    position_ids: torch.Tensor
    """[T] int64: 0, 1, … in each sequence."""
    cu_seqlens: torch.Tensor
    """[S + 1] int32: sequence s is [cu_seqlens[s], cu_seqlens[s + 1])."""
    max_seqlen: int
    """The longest sequence."""
    lengths: tuple[int, ...]
    """S lengths: `cu_seqlens` for those who count in Python."""

    @classmethod
    def pack(cls, sequences: Sequence[npt.ArrayLike]) -> Self:
        """Lays token-id arrays end to end, in their order; at least one, none empty."""
        arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
        lengths = tuple(len(array) for array in arrays)
        assert arrays and min(lengths) > 0, lengths
        return cls(
            token_ids=torch.from_numpy(np.concatenate(arrays)),
            position_ids=torch.from_numpy(np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])),
            cu_seqlens=torch.from_numpy(np.cumsum((0, *lengths), dtype=np.int32)),
            max_seqlen=max(lengths),
            lengths=lengths,
        )

    @property
    def num_tokens(self) -> int:
        """T"""
        return self.token_ids.shape[0]

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where each sequence lies in the row."""
        ends = np.cumsum(self.lengths).tolist()
        return tuple(slice(end - n, end) for end, n in zip(ends, self.lengths, strict=True))

    def pack_values(self, values: Sequence[npt.ArrayLike], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """One value a token, sequence by sequence, to [T]."""
        rows = [torch.as_tensor(np.asarray(value)).to(dtype) for value in values]
        assert tuple(len(row) for row in rows) == self.lengths, ([len(row) for row in rows], self.lengths)
        return torch.cat(rows)

    def unpack(self, values: torch.Tensor) -> list[torch.Tensor]:
        """[T] back to one view per sequence."""
        assert values.shape[0] == self.num_tokens, (values.shape, self.num_tokens)
        return [values[place] for place in self.slices]


def plan_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Which sequences go together: indices, each once, at most `max_tokens` tokens a micro-batch.

    First-fit decreasing: the fullest micro-batches that a simple rule gives, the same for the same
    lengths. A sequence longer than `max_tokens` has a micro-batch of its own, since it cannot be
    split; the budget is about memory and never about the result.
    """
    assert max_tokens > 0, max_tokens
    plan: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        place = next((i for i, left in enumerate(room) if length <= left), None)
        if place is None:
            plan.append([index])
            room.append(max_tokens - length)
        else:
            plan[place].append(index)
            room[place] -= length
    return [sorted(indices) for indices in plan]
