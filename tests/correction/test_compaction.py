"""Closing holes: every token goes to its place among the tokens, and comes back."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from correction.compaction import Compaction


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    shape = draw(st.integers(0, 4)), draw(st.integers(0, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))


@given(masks())
def test_tokens_move_left_and_come_back(mask: Tensor) -> None:
    values = torch.arange(1.0, mask.numel() + 1).view(mask.shape)
    poisoned = torch.where(mask, values, math.nan)
    compaction = Compaction.of(mask)
    packed = compaction.pack(poisoned)
    for i, row in enumerate(mask):
        tokens = values[i][row].tolist()
        assert packed[i].tolist() == tokens + [0.0] * (len(row) - len(tokens))
        assert compaction.packed_mask[i].tolist() == [True] * len(tokens) + [False] * (len(row) - len(tokens))
        assert compaction.ends[i] == len(tokens)
    after = torch.where(compaction.packed_mask, packed, math.nan)
    assert torch.equal(compaction.unpack(after), torch.where(mask, values, 0.0))
    out = torch.full_like(values, math.nan)
    compaction.unpack(after, out=out)
    assert torch.equal(out, torch.where(mask, values, 0.0))


@given(masks())
def test_unmoved_tokens_keep_their_places(mask: Tensor) -> None:
    values = torch.arange(1.0, mask.numel() + 1).view(mask.shape)
    unmoved = Compaction.unmoved(mask)
    packed = unmoved.pack(torch.where(mask, values, math.nan))
    assert torch.equal(packed, torch.where(mask, values, 0.0))
    assert torch.equal(unmoved.packed_mask, mask)
    places = [[t + 1 for t, is_token in enumerate(row) if is_token] for row in mask.tolist()]
    assert unmoved.ends.tolist() == [max(row, default=0) for row in places]


def test_half_precision_is_raised_and_double_stays() -> None:
    compaction = Compaction.of(torch.tensor([[True, False]]))
    for dtype, packed in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert compaction.pack(torch.ones(1, 2, dtype=dtype)).dtype == packed
