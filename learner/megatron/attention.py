"""Causal attention over packed sequences that may share prefixes.

Owns the core attention module that stands in Megatron's layer spec: Megatron's local one refuses packed sequences, and
none knows prefixes. It rotates queries and keys, too (RoFormer, arXiv:2104.09864), by the positions of the layout:
Megatron's rotation begins anew at each segment, and a response's first position is behind its prompt.

Legend: T tokens, C cells of a layout's rectangles, H query heads, G key and value heads, D head size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.attention import CoreAttention, CoreAttentionBuilder
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.typed_torch import apply_module
from torch import Tensor

from learner.megatron.flash import attend, attend_backward
from learner.megatron.layout import Cells, Layout


class SegmentAttention(torch.nn.Module):
    """Scaled dot product attention within each segment of a row and to its prefix (format `thd`)."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        cp_comm_type: str | None = None,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        frequencies: Sequence[float],
        device: torch.device,
        plain: CoreAttentionBuilder | None = None,
    ) -> None:
        """One layer's, as Megatron builds it.

        Args:
            frequencies: D / 2, radians a position.
            device: the model's.
            plain: attention for rows without prefixes, if another does that better.
        """
        super().__init__()
        assert attn_mask_type in (AttnMaskType.causal, AttnMaskType.padding_causal), attn_mask_type
        assert attention_type == "self" and config.attention_dropout == 0.0
        self._softmax_scale = softmax_scale
        # No buffer, which would follow the model to bfloat16.
        self._frequencies = torch.tensor(frequencies, device=device)
        self.plain: CoreAttention | None = None
        if plain is not None:
            self.plain = plain(
                config=config,
                layer_number=layer_number,
                attn_mask_type=attn_mask_type,
                attention_type=attention_type,
                cp_comm_type=cp_comm_type,
                softmax_scale=softmax_scale,
                pg_collection=pg_collection,
            )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        /,
        *,
        attn_mask_type: AttnMaskType,
        attention_bias: Tensor | None,
        packed_seq_params: Layout,
    ) -> Tensor:
        """[T, H, D], [T, G, D], [T, G, D] → [T, H·D]; queries and keys are not yet rotated."""
        assert attention_mask is None and attention_bias is None
        layout = packed_seq_params
        if self.plain is not None and layout.prefixed is None:
            angles = layout.positions[:, None, None] * self._frequencies
            found: Tensor = apply_module(self.plain)(
                rotate(query.clone(), angles),
                rotate(key.clone(), angles),
                value,
                None,
                attn_mask_type=attn_mask_type,
                attention_bias=None,
                packed_seq_params=layout,
            )
            return found
        output: Tensor = _SegmentAttention.apply(  # type: ignore[no-untyped-call]
            query, key, value, layout, self._frequencies, self._softmax_scale
        )
        return output.flatten(1)


class _SegmentAttention(torch.autograd.Function):
    """query [T, H, D], key [T, G, D], value [T, G, D] → [T, H, D].

    A token that follows a prefix has two sets of keys, with outputs o and log-sum-exps l of its products with each;
    over both together it has l = log(e^l₁ + e^l₂) and o = o₁ e^(l₁ − l) + o₂ e^(l₂ − l).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: Layout,
        frequencies: Tensor,
        scale: float | None,
    ) -> Tensor:
        own, prefixed = layout.own, layout.prefixed
        q, k, v = (tokens.index_select(0, own.sources) for tokens in (query, key, value))
        angles = _angles_of_cells(layout, frequencies)
        q, k = rotate(q, angles), rotate(k, angles)
        output, log_sum = _attend((q, k, v), own, own, is_causal=True, scale=scale)
        if prefixed is not None:
            queries, keys = prefixed.queries, prefixed.keys
            parts = [q.index_select(0, queries.sources), *(x.index_select(0, keys.sources) for x in (k, v))]
            theirs, their_log_sum = _attend(parts, queries, keys, is_causal=False, scale=scale)
            cells = queries.sources.index_select(0, prefixed.places)
            theirs, their_log_sum = (x.index_select(0, prefixed.places) for x in (theirs, their_log_sum))
            ours, our_log_sum = (x.index_select(0, cells) for x in (output, log_sum))
            both = torch.logaddexp(our_log_sum, their_log_sum)
            share = (their_log_sum - both).exp_().to(output.dtype)[..., None]
            output.index_copy_(0, cells, torch.lerp(ours, theirs, share))
            log_sum.index_copy_(0, cells, both)
        ctx.layout, ctx.frequencies, ctx.scale = layout, frequencies, scale
        ctx.save_for_backward(q, k, v, output, log_sum)
        return output.index_select(0, layout.places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: Layout = ctx.layout
        own, prefixed = layout.own, layout.prefixed
        q, k, v, output, log_sum = ctx.saved_tensors
        g = grad.index_select(0, own.sources).index_fill_(0, own.padding, 0.0)
        dq, dk, dv = _attend_backward((g, q, k, v, output, log_sum), own, own, is_causal=True, scale=ctx.scale)
        if prefixed is not None:
            queries, keys = prefixed.queries, prefixed.keys
            g, q, output, log_sum = (x.index_select(0, queries.sources) for x in (g, q, output, log_sum))
            g.index_fill_(0, queries.padding, 0.0)
            k, v = (x.index_select(0, keys.sources) for x in (k, v))
            parts = _attend_backward((g, q, k, v, output, log_sum), queries, keys, is_causal=False, scale=ctx.scale)
            dq.index_add_(0, queries.sources, parts[0])
            dk.index_add_(0, keys.sources, parts[1])
            dv.index_add_(0, keys.sources, parts[2])
        angles = -_angles_of_cells(layout, ctx.frequencies)
        dq, dk = rotate(dq, angles), rotate(dk, angles)
        return *(x.index_select(0, layout.places) for x in (dq, dk, dv)), None, None, None


def _attend(
    parts: Sequence[Tensor], queries: Cells, keys: Cells, *, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Queries [C, H, D], keys and values [C', G, D] → outputs [C, H, D] and log-sum-exps [C, H]."""
    rectangles = zip(queries.split(parts[0]), keys.split(parts[1]), keys.split(parts[2]), strict=True)
    outputs, log_sums = zip(*(attend(*three, is_causal=is_causal, scale=scale) for three in rectangles), strict=True)
    return Cells.join(outputs), Cells.join(log_sums)


def _attend_backward(
    parts: Sequence[Tensor], queries: Cells, keys: Cells, *, is_causal: bool, scale: float | None
) -> list[Tensor]:
    """Gradient [C, H, D], query, key, value, output, log-sum-exp → gradients of query, key and value."""
    sides = (queries, queries, keys, keys, queries, queries)
    rectangles = zip(*(side.split(part) for side, part in zip(sides, parts, strict=True)), strict=True)
    grads = (attend_backward(*six, is_causal=is_causal, scale=scale) for six in rectangles)
    return [Cells.join(column) for column in zip(*grads, strict=True)]


def _angles_of_cells(layout: Layout, frequencies: Tensor) -> Tensor:
    """[C, 1, D / 2]"""
    return layout.positions.index_select(0, layout.own.sources)[:, None, None] * frequencies


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turns the halves of each head [T, H, D] in place, by angles [T, 1, D / 2] float32."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    turned = (left * cos).addcmul_(right, sin, value=-1)
    right.mul_(cos).addcmul_(left, sin)
    left.copy_(turned)
    return x
