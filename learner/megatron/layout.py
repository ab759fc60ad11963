"""How the tokens of a micro-batch lie in rectangles for attention, and at which position of its sequence each is.

Owns the plan that every layer reads. Knows nothing of kernels.

Each segment attends to itself: segments of similar length become a rectangle, padded on the right, where causality
alone keeps padding out of every token that counts. And all the tokens that follow a shared prefix attend to the whole
of it: they become one row of queries, beside one row of keys, which so stand once and not once a response. These
rectangles have prefixes of exactly one length, so that no mask is needed.

Legend: T tokens, C cells of all rectangles together, N rows of a rectangle, L its width, H heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from learner.packing import Int64Array, PackedSequences, Segment

# A rectangle takes rows down to this share of its width: the cost of padding against that of a call.
_MIN_FILL = 0.75


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Rectangles, flattened and laid end to end."""

    sources: Tensor
    """[C] int64: whose content each cell has; padding repeats the last of its row."""
    padding: Tensor
    """Int64: which cells are padding."""
    shapes: tuple[tuple[int, int], ...]
    """(N, L) of each rectangle."""

    def split(self, flat: Tensor) -> list[Tensor]:
        """[C, H, D] → a view [N, H, L, D] for each rectangle; [C, H] → [N, H, L]."""
        parts = flat.split([n * width for n, width in self.shapes])
        return [part.unflatten(0, shape).transpose(1, 2) for part, shape in zip(parts, self.shapes, strict=True)]

    @staticmethod
    def join(rectangles: Sequence[Tensor]) -> Tensor:
        """Undoes `split`."""
        return torch.cat([rectangle.transpose(1, 2).flatten(0, 1) for rectangle in rectangles])


@dataclass(frozen=True, kw_only=True)
class Prefixed:
    """Queries of all that follows a prefix, beside the prefix's keys: as many rectangles of each, of as many rows."""

    queries: Cells
    """Of cells of `Layout.own`."""
    keys: Cells
    """Likewise, without padding."""
    places: Tensor
    """[F] int64: the cells of `queries` that are not padding."""


@dataclass(kw_only=True)
class Layout(PackedSeqParams):  # type: ignore[misc]
    """Megatron's account of packed sequences, with ours: the same for every layer, so made once a micro-batch."""

    own: Cells
    """Segments, of tokens."""
    places: Tensor
    """[T] int64: in which cell of `own` each token is."""
    prefixed: Prefixed | None
    """None: no segment has a prefix."""
    positions: Tensor
    """[T] int64: of each token in its sequence."""

    @classmethod
    def of(cls, sequences: PackedSequences, device: torch.device) -> Self:
        """The layout of a micro-batch, for a model on this device."""
        segments = sequences.segments
        ranges = [np.arange(segment.start, segment.end) for segment in segments]
        own = _Grid.of(ranges, _alike([segment.length for segment in segments]))
        cells = np.flatnonzero(own.is_real)
        places = np.empty_like(cells)
        places[own.sources[cells]] = cells
        bounds = torch.tensor([0, *(segment.end for segment in segments)], dtype=torch.int32, device=device)
        longest = max(segment.length for segment in segments)
        return cls(
            qkv_format="thd",
            cu_seqlens_q=bounds,
            cu_seqlens_kv=bounds,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
            own=own.cells(device),
            places=torch.from_numpy(places).to(device),
            prefixed=_prefixed(segments, ranges, places, device),
            positions=sequences.position_ids.to(device),
        )


def _prefixed(
    segments: Sequence[Segment], ranges: Sequence[Int64Array], places: Int64Array, device: torch.device
) -> Prefixed | None:
    followers: dict[int, list[Int64Array]] = {}
    for segment, tokens in zip(segments, ranges, strict=True):
        if segment.prefix is not None:
            followers.setdefault(segment.prefix, []).append(tokens)
    if not followers:
        return None
    queries = [places[np.concatenate(tokens)] for tokens in followers.values()]
    keys = [places[ranges[prefix]] for prefix in followers]
    groups = [
        [same_keys[i] for i in group]
        for same_keys in _alike([len(row) for row in keys], min_fill=1.0)
        for group in _alike([len(queries[i]) for i in same_keys])
    ]
    grid = _Grid.of(queries, groups)
    return Prefixed(
        queries=grid.cells(device),
        keys=_Grid.of(keys, groups).cells(device),
        places=torch.from_numpy(np.flatnonzero(grid.is_real)).to(device),
    )


def _alike(lengths: Sequence[int], *, min_fill: float = _MIN_FILL) -> list[list[int]]:
    """Indices of similar lengths together, the longest of each list first."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and lengths[index] >= min_fill * lengths[groups[-1][0]]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


class _Grid(NamedTuple):
    """`Cells` in the making."""

    sources: Int64Array
    is_real: npt.NDArray[np.bool_]
    """[C]: not padding."""
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rows: Sequence[Int64Array], groups: Sequence[Sequence[int]]) -> Self:
        """Each group of rows as a rectangle, the longest row first."""
        shapes = tuple((len(group), len(rows[group[0]])) for group in groups)
        widths = np.repeat([width for _, width in shapes], [n for n, _ in shapes])
        ordered = [rows[index] for group in groups for index in group]
        lengths = np.array([len(row) for row in ordered])
        counts = np.stack([lengths, widths - lengths], axis=1).ravel()
        last = np.array([row[-1] for row in ordered])
        is_real = np.repeat(np.tile([True, False], len(ordered)), counts)
        sources = np.repeat(last, widths)
        sources[is_real] = np.concatenate(ordered)
        return cls(sources, is_real, shapes)

    def cells(self, device: torch.device) -> Cells:
        """The same on the model's device."""
        return Cells(
            sources=torch.from_numpy(self.sources).to(device),
            padding=torch.from_numpy(np.flatnonzero(~self.is_real)).to(device),
            shapes=self.shapes,
        )
