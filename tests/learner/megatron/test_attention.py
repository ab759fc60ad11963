"""Attention over segments and prefixes, against a softmax written out for one sequence at a time."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.attention import CoreAttentionBuilder
from megatron.core.transformer.enums import AttnMaskType
from torch.utils.checkpoint import checkpoint

from learner.megatron.attention import SegmentAttention, rotate
from learner.megatron.layout import Layout
from learner.packing import PackedSequences
from tests.learner.megatron.lengths import Groups, groups, pack

NUM_HEADS, NUM_GROUPS, HEAD = 4, 2, 8
FREQUENCIES = (1.0, 0.3, 0.1, 0.03)


def module(plain: CoreAttentionBuilder | None = None) -> SegmentAttention:
    config = TransformerConfig(
        num_layers=1, hidden_size=NUM_HEADS * HEAD, num_attention_heads=NUM_HEADS, attention_dropout=0.0
    )
    return SegmentAttention(
        config,
        1,
        AttnMaskType.causal,
        "self",
        frequencies=FREQUENCIES,
        device=torch.device("cpu"),
        plain=plain,
    )


def attend(attention: SegmentAttention, parts: list[torch.Tensor], sequences: PackedSequences) -> torch.Tensor:
    found: torch.Tensor = attention(
        *parts,
        None,
        attn_mask_type=AttnMaskType.causal,
        attention_bias=None,
        packed_seq_params=Layout.of(sequences, torch.device("cpu")),
    )
    return found


def draw(num_tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Query [T, H, D], key and value [T, G, D]."""
    torch.manual_seed(0)
    heads = (NUM_HEADS, NUM_GROUPS, NUM_GROUPS)
    return [torch.randn(num_tokens, n, HEAD).to(dtype).requires_grad_() for n in heads]


def turned(x: torch.Tensor) -> torch.Tensor:
    """[t, H, D] of a sequence from its first token on: each pair of halves as a complex number, times e^(iφ)."""
    # The angles are float32, as transformers has them.
    angles = torch.arange(len(x))[:, None, None] * torch.tensor(FREQUENCIES)
    turn = torch.complex(angles.cos().to(x.dtype), angles.sin().to(x.dtype))
    z = torch.complex(x[..., : HEAD // 2], x[..., HEAD // 2 :]) * turn
    return torch.cat([z.real, z.imag], dim=-1)


def naive(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[t, H, D], [t, G, D], [t, G, D] of one sequence → [t, H·D]."""
    query, key = turned(query), turned(key)
    key, value = (x.repeat_interleave(NUM_HEADS // NUM_GROUPS, dim=1) for x in (key, value))
    weights = torch.einsum("ihd,jhd->hij", query, key) / HEAD**0.5
    future = torch.ones(len(query), len(query)).triu(1).bool()
    return torch.einsum("hij,jhd->ihd", weights.masked_fill(future, -torch.inf).softmax(-1), value).flatten(1)


def one_by_one(parts: list[torch.Tensor], drawn: Groups) -> torch.Tensor:
    """[T, H·D] of `pack(drawn)`: each response behind its own copy of the prompt."""
    outputs, start = [], 0
    for prompt, responses in drawn:
        before = torch.arange(start, start + prompt)
        start += prompt
        outputs.append(naive(*(x[before] for x in parts)))
        for length in responses:
            tokens = torch.cat([before, torch.arange(start, start + length)])
            outputs.append(naive(*(x[tokens] for x in parts))[prompt:])
            start += length
    return torch.cat(outputs)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@given(drawn=groups())
def test_a_response_attends_to_itself_and_its_prompt_alone(drawn: Groups, dtype: torch.dtype, bound: float) -> None:
    sequences = pack(drawn)
    ours = draw(sequences.num_tokens, dtype)
    theirs = [x.detach().double().requires_grad_() for x in ours]
    found, expected = attend(module(), ours, sequences), one_by_one(theirs, drawn)
    assert found.dtype == dtype and (found - expected).abs().max() < bound
    weights = torch.randn_like(expected)
    (found * weights.to(dtype)).sum().backward()
    (expected * weights).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert x.grad is not None and y.grad is not None
        assert (x.grad - y.grad).abs().max() < bound


@given(drawn=groups())
def test_sharing_a_prompt_changes_neither_outputs_nor_gradients(drawn: Groups) -> None:
    shared = pack(drawn)
    ours = draw(shared.num_tokens, torch.float64)
    plain = PackedSequences.pack([[0] * (prompt + n) for prompt, responses in drawn for n in responses])
    # Which token of the shared row each of the plain one's is.
    sources, is_first, start = [], [], 0
    for prompt, responses in drawn:
        before, place = range(start, start + prompt), start + prompt
        for index, length in enumerate(responses):
            sources += [*before, *range(place, place + length)]
            is_first += [index == 0] * prompt + [True] * length
            place += length
        start = place
    theirs = [x.detach()[sources].requires_grad_() for x in ours]
    found, expected = attend(module(), ours, shared), attend(module(), theirs, plain)
    assert (found[sources] - expected).abs().max() < 1e-10
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (found[sources] * weights).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert x.grad is not None and y.grad is not None
        assert (x.grad - torch.zeros_like(x).index_add(0, torch.tensor(sources), y.grad)).abs().max() < 1e-10


def test_bfloat16_is_near() -> None:
    drawn = [(20, [7, 3, 12]), (5, [9])]
    parts = draw(pack(drawn).num_tokens, torch.bfloat16)
    found = attend(module(), parts, pack(drawn))
    assert found.dtype == torch.bfloat16
    assert (found - one_by_one([x.double() for x in parts], drawn)).abs().max() < 0.03


def test_doing_it_again_in_the_backward_pass_changes_no_bit() -> None:
    sequences = pack([(20, [7, 3, 12]), (5, [9]), (20, [1, 2])])
    ours, again = draw(sequences.num_tokens, torch.float32), draw(sequences.num_tokens, torch.float32)
    attention = module()
    found = attend(attention, ours, sequences)
    recomputed = checkpoint(lambda *parts: attend(attention, list(parts), sequences), *again, use_reentrant=True)
    assert isinstance(recomputed, torch.Tensor) and recomputed.equal(found)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (recomputed * weights).sum().backward()
    assert all(
        x.grad is not None and y.grad is not None and x.grad.equal(y.grad) for x, y in zip(ours, again, strict=True)
    )


class Counted(torch.nn.Module):
    """Attention within each sequence of a row without prefixes, where another module does that better."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        /,
        *,
        attn_mask_type: AttnMaskType,
        attention_bias: torch.Tensor | None,
        packed_seq_params: PackedSeqParams | None,
    ) -> torch.Tensor:
        assert packed_seq_params is not None
        self.num_calls += 1
        outputs = []
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        for start, end in pairwise(bounds):
            q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
            output = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            outputs.append(output.transpose(0, 1).flatten(1))
        return torch.cat(outputs)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_another_s_attention_gets_rows_without_prefixes_rotated(lengths: list[int]) -> None:
    sequences = PackedSequences.pack([[0] * n for n in lengths])
    parts, again = draw(sequences.num_tokens, torch.float32), draw(sequences.num_tokens, torch.float32)
    outer = module(Counted)
    found, expected = attend(outer, parts, sequences), attend(module(), again, sequences)
    assert isinstance(outer.plain, Counted) and outer.plain.num_calls == 1
    assert (found - expected).abs().max() < 1e-5
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for x, y in zip(parts, again, strict=True):
        assert x.grad is not None and y.grad is not None and (x.grad - y.grad).abs().max() < 1e-5
    attend(outer, draw(6, torch.float32), pack([(2, [3, 1])]))
    assert outer.plain.num_calls == 1


def test_rotating_back_undoes_it() -> None:
    x, angles = torch.randn(5, 3, HEAD, dtype=torch.float64), torch.randn(5, 1, HEAD // 2)
    assert (rotate(rotate(x.clone(), angles), -angles) - x).abs().max() < 1e-6
