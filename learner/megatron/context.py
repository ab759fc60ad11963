"""Context parallelism: ranks that share the tokens of a row, and in attention its heads (Ulysses, arXiv:2309.14509).

Owns both exchanges and the attention module between them. Each rank of c has T / c tokens beside each other and all of
its heads; for attention each gets all T tokens of its part of the heads. So attention sees whole rows, with whatever
segments and prefixes they have, and is the same with and without.

Legend: T tokens of a row, c context parallel ranks, t = T / c, H query heads, G key and value heads, D head size.
"""

import math
from collections.abc import Callable
from copy import copy

import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import (
    all_to_all,
    gather_from_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from learner.megatron.layout import Layout


class ContextAttention(torch.nn.Module):
    """Another core attention over this rank's part of the heads."""

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
        inner: Callable[..., torch.nn.Module],
    ) -> None:
        """One layer's, as Megatron builds it; `inner` builds the other attention."""
        super().__init__()
        size, tp = config.context_parallel_size, config.tensor_model_parallel_size
        num_groups = math.lcm(config.num_query_groups // tp, size)
        self._num_repeats = num_groups // (config.num_query_groups // tp)
        # The inner one is to know of no context parallelism, but of fewer heads.
        part = copy(config)
        part.context_parallel_size = 1
        part.num_attention_heads = config.num_attention_heads // size
        part.num_query_groups = num_groups // size * tp
        self.inner = inner(
            config=part,
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
        """[t, H, D], [t, G, D], [t, G, D] → [t, H·D]; the layout is the whole row's."""
        # Where ranks are more than key heads, several get the same.
        key, value = (x.repeat_interleave(self._num_repeats, dim=1) for x in (key, value))
        output: Tensor = self.inner(
            *(_by_heads(x) for x in (query, key, value)),
            attention_mask,
            attn_mask_type=attn_mask_type,
            attention_bias=attention_bias,
            packed_seq_params=packed_seq_params,
        )
        return _by_tokens(output.unflatten(1, (-1, query.shape[-1]))).flatten(1)


def _by_heads(x: Tensor) -> Tensor:
    """[t, H, D] of this rank's tokens → [T, H / c, D] of this rank's heads."""
    group = parallel_state.get_context_parallel_group()
    parts = x.unflatten(1, (group.size(), -1)).transpose(0, 1).contiguous()
    received: Tensor = all_to_all(group, parts)
    return received.flatten(0, 1)


def _by_tokens(x: Tensor) -> Tensor:
    """Undoes `_by_heads`."""
    group = parallel_state.get_context_parallel_group()
    received: Tensor = all_to_all(group, x.unflatten(0, (group.size(), -1)).contiguous())
    return received.transpose(0, 1).flatten(1, 2)


def own_tokens(row: Tensor) -> Tensor:
    """[T] → this rank's [t]."""
    group = parallel_state.get_context_parallel_group()
    parts: tuple[Tensor, ...] = row.chunk(group.size())
    return parts[int(group.rank())]


def whole_row(hidden: Tensor, *, is_split: bool) -> Tensor:
    """This rank's hidden states [t, 1, H] → those of the whole row, [T, 1, H]; gradients are summed over the ranks.

    Args:
        hidden: of the last stage.
        is_split: whether tensor parallel ranks share the t, and then the T, evenly.
    """
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return hidden
    if is_split:
        hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
    hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True, group=group)
    return scatter_to_sequence_parallel_region(hidden) if is_split else hidden
