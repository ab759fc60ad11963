"""Causal attention over packed sequences, for machines without Transformer Engine.

Owns the core attention module that stands in Megatron's layer spec, and what it wants to know of a
micro-batch. Megatron's own local attention refuses packed sequences; this one attends within each
sequence and never across: sequences of similar length become a rectangle, padded on the right, where
causality alone keeps padding out of every token that counts.

Legend: T tokens, H query heads, G key and value heads, D head size, N sequences of a rectangle, L its width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import scaled_dot_product_attention

from learner.packing import PackedSequences

# A rectangle takes sequences down to this share of its width: the cost of padding against that of a call.
_MIN_FILL = 0.75


@dataclass
class Rectangles(PackedSeqParams):  # type: ignore[misc]
    """Megatron's account of packed sequences, and how they are laid out for attention."""

    tokens: list[torch.Tensor] = field(default_factory=list)
    """For each rectangle [N, L] int64: which of the T tokens; padding repeats a sequence's last."""
    places: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """[T] int64: where each token is found in the rectangles, flattened and laid end to end."""

    @classmethod
    def lay_out(cls, sequences: PackedSequences, device: torch.device) -> Self:
        """The layout of a micro-batch; the same for every layer, so made once."""
        starts = sequences.cu_seqlens[:-1].long()
        lengths = torch.tensor(sequences.lengths)
        tokens: list[torch.Tensor] = []
        places = torch.empty(sequences.num_tokens, dtype=torch.int64)
        offset = 0
        for members in _alike(sequences.lengths):
            columns = torch.arange(sequences.lengths[members[0]])
            start, length = starts[members, None], lengths[members, None]
            tokens.append(start + columns.minimum(length - 1))
            is_real = columns < length
            places[tokens[-1][is_real]] = is_real.flatten().nonzero().squeeze(1) + offset
            offset += is_real.numel()
        return cls(
            qkv_format="thd",
            cu_seqlens_q=sequences.cu_seqlens.to(device),
            cu_seqlens_kv=sequences.cu_seqlens.to(device),
            max_seqlen_q=sequences.max_seqlen,
            max_seqlen_kv=sequences.max_seqlen,
            tokens=[rectangle.to(device) for rectangle in tokens],
            places=places.to(device),
        )


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Sequences of similar length together, the longest of each list first."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and lengths[index] >= _MIN_FILL * lengths[groups[-1][0]]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


class SegmentAttention(torch.nn.Module):
    """Scaled dot product attention within each sequence of a row (format `thd`)."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        cp_comm_type: str | None = None,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> None:
        super().__init__()
        assert attn_mask_type in (AttnMaskType.causal, AttnMaskType.padding_causal), attn_mask_type
        assert attention_type == "self" and config.context_parallel_size == 1
        assert config.attention_dropout == 0.0
        self.softmax_scale = softmax_scale

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
        packed_seq_params: Rectangles,
    ) -> torch.Tensor:
        """[T, H, D], [T, G, D], [T, G, D] → [T, H·D]."""
        assert attention_mask is None and attention_bias is None
        outputs = [self._attend(query, key, value, tokens) for tokens in packed_seq_params.tokens]
        return torch.cat(outputs).index_select(0, packed_seq_params.places)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """A rectangle [N, L] of the T tokens → [N·L, H·D]."""
        rows = tokens.flatten()
        q, k, v = (
            flat.index_select(0, rows).view(*tokens.shape, *flat.shape[1:]).transpose(1, 2)
            for flat in (query, key, value)
        )
        output = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=True)
        return output.transpose(1, 2).reshape(len(rows), -1)
