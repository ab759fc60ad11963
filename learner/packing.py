"""Sequences laid end to end in one row, so that a micro-batch has no padding.

Owns `PackedSequences`: which tokens lie where, who attends to whom, and which tokens are scored by which. Sequences of
one prompt can share its tokens: those stand once, before the responses. Knows nothing of losses or models.

    plain    │ prompt response₁ │ prompt response₂ │        two segments
    shared   │ prompt │ response₁ │ response₂ │           three; the last two attend to the first as well

Legend: T tokens of a micro-batch, S sequences in it, M tokens that are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self, TypedDict

import numpy as np
import numpy.typing as npt
import torch

Int64Array = npt.NDArray[np.int64]


class Segment(NamedTuple):
    """Neighbouring tokens, of which each attends to itself, to those before it, and to all of another segment."""

    start: int
    length: int
    prefix: int | None = None
    """Index of that segment, which lies before this one and has no prefix itself."""

    @property
    def end(self) -> int:
        """Behind its last token."""
        return self.start + self.length


@dataclass(frozen=True, kw_only=True)
class PackedSequences:
    """A micro-batch: S sequences in one row of T tokens."""

    token_ids: torch.Tensor
    """[T] int64."""
    position_ids: torch.Tensor
    """[T] int64: of each token in its sequence, from 0."""
    segments: tuple[Segment, ...]
    """In the order of the row, which they cover."""
    scored: torch.Tensor
    """[M] int64: where the tokens stand that are scored, sequence by sequence."""
    sources: torch.Tensor
    """[M] int64: where the token before each of them stands, whose state says what comes."""
    num_scored: tuple[int, ...]
    """Of each of the S sequences."""

    @classmethod
    def pack(cls, sequences: Sequence[npt.ArrayLike], num_scored: Sequence[int] | None = None) -> Self:
        """Lays sequences end to end, in their order.

        Args:
            sequences: token ids; at least one sequence, none empty.
            num_scored: the last so many of each are scored, never the first; None: all but the first.
        """
        arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
        counts = [len(array) - 1 for array in arrays] if num_scored is None else list(num_scored)
        assert len(arrays) == len(counts), (len(arrays), len(counts))
        row = _Row()
        for array, count in zip(arrays, counts, strict=True):
            assert 0 <= count < len(array), (count, len(array))
            row.add(array[: len(array) - count], [array[len(array) - count :]])
        return cls(**row.fields())

    @classmethod
    def pack_groups(cls, groups: Sequence[tuple[npt.ArrayLike, Sequence[npt.ArrayLike]]]) -> Self:
        """Lays groups end to end: a prompt once, then each of its responses, all of whose tokens are scored.

        Args:
            groups: at least one; prompts have at least one token, responses may be empty.
        """
        row = _Row()
        for prompt, responses in groups:
            row.add(
                np.asarray(prompt, dtype=np.int64), [np.asarray(response, dtype=np.int64) for response in responses]
            )
        return cls(**row.fields())

    @property
    def num_tokens(self) -> int:
        """T"""
        return self.token_ids.shape[0]

    @property
    def num_scored_tokens(self) -> int:
        """M"""
        return self.scored.shape[0]

    @cached_property
    def labels(self) -> torch.Tensor:
        """[M] int64: the tokens that are scored."""
        return self.token_ids[self.scored]

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where each sequence's scores lie among the M."""
        ends = np.cumsum(self.num_scored).tolist()
        return tuple(slice(end - n, end) for end, n in zip(ends, self.num_scored, strict=True))

    def unpack(self, scores: torch.Tensor) -> list[torch.Tensor]:
        """[M] to one view a sequence."""
        assert scores.shape[0] == self.num_scored_tokens, (scores.shape, self.num_scored_tokens)
        return [scores[place] for place in self.slices]


class _Fields(TypedDict):
    token_ids: torch.Tensor
    position_ids: torch.Tensor
    segments: tuple[Segment, ...]
    scored: torch.Tensor
    sources: torch.Tensor
    num_scored: tuple[int, ...]


class _Row:
    """A row in the making."""

    def __init__(self) -> None:
        self._tokens: list[Int64Array] = []
        self._positions: list[Int64Array] = []
        self._segments: list[Segment] = []
        self._scored: list[Int64Array] = []
        self._sources: list[Int64Array] = []
        self._length = 0

    def add(self, prompt: Int64Array, responses: Sequence[Int64Array]) -> None:
        """A prompt and what follows it; a prompt of one response needs no segment of its own."""
        assert len(prompt) and responses, (len(prompt), len(responses))
        last = self._length + len(prompt) - 1
        if len(responses) == 1:
            self._append(np.concatenate([prompt, responses[0]]), first_position=0, prefix=None)
            self._score(last + 1, len(responses[0]), source=last)
            return
        shared = len(self._segments)
        self._append(prompt, first_position=0, prefix=None)
        for response in responses:
            start = self._length
            if len(response):
                self._append(response, first_position=len(prompt), prefix=shared)
            self._score(start, len(response), source=last)

    def fields(self) -> _Fields:
        """Of `PackedSequences`."""
        assert self._tokens
        return _Fields(
            token_ids=torch.from_numpy(np.concatenate(self._tokens)),
            position_ids=torch.from_numpy(np.concatenate(self._positions)),
            segments=tuple(self._segments),
            scored=torch.from_numpy(np.concatenate(self._scored)),
            sources=torch.from_numpy(np.concatenate(self._sources)),
            num_scored=tuple(map(len, self._scored)),
        )

    def _append(self, tokens: Int64Array, *, first_position: int, prefix: int | None) -> None:
        self._tokens.append(tokens)
        self._positions.append(np.arange(first_position, first_position + len(tokens), dtype=np.int64))
        self._segments.append(Segment(self._length, len(tokens), prefix))
        self._length += len(tokens)

    def _score(self, start: int, count: int, *, source: int) -> None:
        """Tokens from `start` on, of which the first follows `source` and the others each other."""
        scored = np.arange(start, start + count, dtype=np.int64)
        sources = scored - 1
        sources[:1] = source
        self._scored.append(scored)
        self._sources.append(sources)


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
