"""Attention of equally long sequences, with the normaliser of each query beside it, so that parts can be merged.

Owns the choice of PyTorch's fused kernel, forward and backward. Knows nothing of layouts.

Flash attention (arXiv:2205.14135) needs of a query's forward pass only its output and its log-sum-exp to go backward.
Given those of a merge over several sets of keys, the backward pass over one set gives the exact part of the gradient.

Legend: N sequences, L queries and K keys of each, H query heads, G key and value heads, D head size.
"""

import torch
from torch import Tensor

_aten = torch.ops.aten


def attend(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Scaled dot product attention.

    Args:
        query: [N, H, L, D], of any strides but the last.
        key: [N, G, K, D]; query head h reads head h // (H / G).
        value: [N, G, K, D].
        is_causal: query i attends to keys 0 … i; K = L.
        scale: of the products; None: 1 / √D.

    Returns:
        Output [N, H, L, D], and the log-sum-exp of each query's scaled products, [N, H, L] float32 or float64.
    """
    if query.is_cuda:
        output, log_sum_exp, *_ = _aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, is_causal, False, scale=scale
        )
    else:
        output, log_sum_exp = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, scale=scale
        )
    return output, log_sum_exp


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    *,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value: of all of `attend`, or of this set of keys' part in a merge.

    Args:
        grad: [N, H, L, D], of the output, merged if that is.
        query, key, value: as in `attend`.
        output: [N, H, L, D], merged with that of other keys or not.
        log_sum_exp: [N, H, L], likewise.
    """
    if query.is_cuda:
        no_dropout = query.new_empty(0, dtype=torch.uint64)
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_backward(
            grad,
            query,
            key,
            value,
            output,
            log_sum_exp.contiguous(),
            None,
            None,
            query.shape[2],
            key.shape[2],
            0.0,
            is_causal,
            no_dropout,
            no_dropout,
            scale=scale,
        )
    else:
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, key, value, output, log_sum_exp, 0.0, is_causal, scale=scale
        )
    return dq, dk, dv
