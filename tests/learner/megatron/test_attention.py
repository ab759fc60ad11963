"""Attention over rectangles, against a softmax written out per sequence."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import AttnMaskType

from learner.megatron.attention import Rectangles, SegmentAttention
from learner.packing import PackedSequences

NUM_HEADS, NUM_GROUPS, HEAD = 4, 2, 8

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def naive(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[t, H, D], [t, G, D], [t, G, D] of one sequence → [t, H·D]."""
    key, value = (x.repeat_interleave(NUM_HEADS // NUM_GROUPS, dim=1) for x in (key, value))
    weights = torch.einsum("ihd,jhd->hij", query, key) / HEAD**0.5
    future = torch.ones(len(query), len(query)).triu(1).bool()
    return torch.einsum("hij,jhd->ihd", weights.masked_fill(future, -torch.inf).softmax(-1), value).flatten(1)


def module() -> SegmentAttention:
    config = TransformerConfig(
        num_layers=1, hidden_size=NUM_HEADS * HEAD, num_attention_heads=NUM_HEADS, attention_dropout=0.0
    )
    return SegmentAttention(config, 1, AttnMaskType.causal, "self")


@given(lengths=lengths)
def test_each_sequence_attends_to_itself_alone(lengths: list[int]) -> None:
    torch.manual_seed(0)
    sequences = PackedSequences.pack([[0] * n for n in lengths])
    shapes = [(sequences.num_tokens, n, HEAD) for n in (NUM_HEADS, NUM_GROUPS, NUM_GROUPS)]
    ours = [torch.randn(shape).requires_grad_() for shape in shapes]
    theirs = [x.detach().double().requires_grad_() for x in ours]
    found = module()(
        *ours,
        None,
        attn_mask_type=AttnMaskType.causal,
        attention_bias=None,
        packed_seq_params=Rectangles.lay_out(sequences, torch.device("cpu")),
    )
    expected = torch.cat([naive(*parts) for parts in zip(*(sequences.unpack(x) for x in theirs), strict=True)])
    assert (found - expected).abs().max() < 2e-6
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert x.grad is not None and y.grad is not None
        assert (x.grad - y.grad).abs().max() < 1e-5


@given(lengths=lengths)
def test_a_rectangle_is_three_quarters_full_at_least(lengths: list[int]) -> None:
    sequences = PackedSequences.pack([[0] * n for n in lengths])
    layout = Rectangles.lay_out(sequences, torch.device("cpu"))
    num_cells = sum(tokens.numel() for tokens in layout.tokens)
    assert sequences.num_tokens >= 0.75 * num_cells
    cells = torch.cat([tokens.flatten() for tokens in layout.tokens])
    assert torch.equal(cells[layout.places], torch.arange(sequences.num_tokens))
