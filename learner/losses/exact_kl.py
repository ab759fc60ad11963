"""KL between two distributions over the vocabulary: the sum itself, not an estimate from one sample.

Owns the sum and its gradient, over pieces of the tokens, so that no temporary has the size of the distributions but
the gradient. Must not know where they come from.

Legend: M tokens, V vocabulary; p, q the distributions.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 20
"""Elements of a piece [m, V]: a few float32 temporaries of 4 MiB each."""


def exact_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ_v p_v·(log p_v − log q_v); 0·log 0 is 0.

    Args:
        log_p: [..., V] logarithms of probabilities, with gradient.
        log_q: [..., V] the same of the reference; gets no gradient.

    Returns:
        [...] nats, float32 or wider; infinite where q excludes what p does not.
    """
    assert log_p.shape == log_q.shape and log_p.ndim > 0, (log_p.shape, log_q.shape)
    vocabulary = log_p.shape[-1]
    rows = log_p.reshape(-1, vocabulary), log_q.detach().reshape(-1, vocabulary)
    kl: Tensor = _ExactKL.apply(*rows)  # type: ignore[no-untyped-call]
    return kl.view(log_p.shape[:-1])


class _ExactKL(torch.autograd.Function):
    """∂KL/∂log p_v = p_v·(log p_v − log q_v + 1), for log p_v that are free of each other."""

    @staticmethod
    def forward(ctx: Any, log_p: Tensor, log_q: Tensor) -> Tensor:
        ctx.save_for_backward(log_p, log_q)
        kl = log_p.new_empty(len(log_p), dtype=torch.promote_types(log_p.dtype, torch.float32))
        for rows in _pieces(log_p):
            p, gap = _probabilities_and_gaps(log_p[rows], log_q[rows], kl.dtype)
            kl[rows] = p.mul_(gap).sum(-1)
        return kl

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        log_p, log_q = ctx.saved_tensors
        gradient = torch.empty_like(log_p)
        for rows in _pieces(log_p):
            p, gap = _probabilities_and_gaps(log_p[rows], log_q[rows], grad.dtype)
            gradient[rows] = p.mul_(gap.add_(1)).mul_(grad[rows, None])
        return gradient, None


def _probabilities_and_gaps(log_p: Tensor, log_q: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """p, and log p − log q where p is not 0, else 0."""
    log_p, log_q = log_p.to(dtype), log_q.to(dtype)
    p = log_p.exp()
    return p, (log_p - log_q).masked_fill_(p == 0, 0.0)


def _pieces(log_p: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK_ELEMENTS // max(1, log_p.shape[1]))
    for start in range(0, len(log_p), step):
        yield slice(start, start + step)
