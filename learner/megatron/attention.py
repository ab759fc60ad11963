"""Causal attention over packed sequences, for machines without Transformer Engine.

Owns the core attention module that stands in Megatron's layer spec. Megatron's own local attention
refuses packed sequences; this one attends within each sequence of a row and never across.

Legend: T tokens, H query heads, G key and value heads, D head size.
"""

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import scaled_dot_product_attention


class SegmentAttention(torch.nn.Module):
    """Scaled dot product attention, sequence by sequence (format `thd`)."""

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
        packed_seq_params: PackedSeqParams,
    ) -> torch.Tensor:
        """[T, H, D], [T, G, D], [T, G, D] → [T, H·D]."""
        assert attention_mask is None and attention_bias is None
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        outputs = [
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=True).transpose(
                0, 1
            )
            for q, k, v in zip(
                query.transpose(0, 1).split(lengths, 1),
                key.transpose(0, 1).split(lengths, 1),
                value.transpose(0, 1).split(lengths, 1),
                strict=True,
            )
        ]
        return torch.cat(outputs).flatten(1)
