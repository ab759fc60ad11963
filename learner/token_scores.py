"""From logits to what the policy says of its tokens, with exact gradients and no second copy of the logits.

Owns the arithmetic between rows of logits and `TokenScores`, chunk by chunk. Knows nothing of models.

Legend: T tokens, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from learner.backend import LazyLogits, TokenScores
from learner.packing import PackedSequences

# Temporaries of a chunk are [C, V] float32: on the CPU small enough for its caches, on a GPU few and large.
_CPU_CHUNK_ELEMENTS = 1 << 20
_GPU_CHUNK_ELEMENTS = 1 << 24
# A chunk of the reference reads its whole output layer, which fewer rows than these are not worth.
_REFERENCE_ROWS = 64


class RowScores(NamedTuple):
    """What each row of logits says of its label; in float32, or in float64 where the logits are."""

    logprobs: Tensor
    """log p(label), nats."""
    entropy: Tensor
    """−Σ_v p_v log p_v, nats."""
    sum_pi_squared: Tensor | None
    """Σ_v p_v², without gradient; None where not asked for."""
    exact_kl: Tensor | None
    """Σ_v p_v (log p_v − log q_v), nats; None without a reference q."""


def token_scores(
    logits: Tensor,
    sequences: PackedSequences,
    *,
    temperature: float,
    with_sum_pi_squared: bool = False,
    reference: LazyLogits | None = None,
) -> TokenScores:
    """Scores each token by the logits of the token before it.

    Args:
        logits: [T, V], float32 or narrower. Consumed: the backward pass overwrites it with its gradient.
        sequences: the T tokens that the logits were computed from.
        temperature: above 0; logits are divided by it, the reference's too.
        with_sum_pi_squared: fill that field.
        reference: fill `exact_kl`, with gradient, by what the reference says of the same tokens.

    Returns:
        [T] float32 each; 0 at the first token of each sequence, which nothing predicts.
    """
    assert logits.ndim == 2 and logits.shape[0] == sequences.num_tokens, (logits.shape, sequences.num_tokens)
    # Row t predicts token t + 1; the last row predicts nothing and is masked like every sequence's last.
    labels = sequences.token_ids.to(logits.device).roll(-1)
    rows = score_rows(
        logits, labels, temperature=temperature, with_sum_pi_squared=with_sum_pi_squared, reference=reference
    )
    return TokenScores(
        logprobs=to_next_tokens(rows.logprobs, sequences),
        entropy=to_next_tokens(rows.entropy, sequences),
        sum_pi_squared=None if rows.sum_pi_squared is None else to_next_tokens(rows.sum_pi_squared, sequences),
        exact_kl=None if rows.exact_kl is None else to_next_tokens(rows.exact_kl, sequences),
    )


def to_next_tokens(rows: Tensor, sequences: PackedSequences) -> Tensor:
    """[T], where row t speaks of token t + 1, to [T] where it speaks of token t; 0 at each sequence's first."""
    is_first = (sequences.position_ids == 0).to(rows.device)
    return torch.where(is_first, rows.new_zeros(()), rows.roll(1))


def score_rows(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float,
    with_sum_pi_squared: bool = False,
    reference: LazyLogits | None = None,
) -> RowScores:
    """Scores the label of each row of logits.

    Args:
        logits: [..., V], contiguous. Consumed: the backward pass overwrites it with its gradient.
        labels: [...] int64.
        temperature: above 0; logits are divided by it, the reference's too.
        with_sum_pi_squared: fill that field.
        reference: fill `exact_kl`; its rows are those of the logits, flattened.

    Returns:
        [...] each.
    """
    assert labels.shape == logits.shape[:-1], (labels.shape, logits.shape)
    assert temperature > 0.0, temperature
    flat = logits.view(-1, logits.shape[-1])
    logprobs, entropy, sum_pi_squared, exact_kl = _RowScores.apply(  # type: ignore[no-untyped-call]
        flat, labels.flatten(), temperature, with_sum_pi_squared, reference
    )
    return RowScores(
        logprobs=logprobs.view(labels.shape),
        entropy=entropy.view(labels.shape),
        sum_pi_squared=None if sum_pi_squared is None else sum_pi_squared.view(labels.shape),
        exact_kl=None if exact_kl is None else exact_kl.view(labels.shape),
    )


class _RowScores(torch.autograd.Function):
    """logits [T, V], labels [T] → the fields of `RowScores`, [T] each.

    With z = logits / temperature, p = softmax(z), H the entropy and K = Σ_v p_v (log p_v − log q_v):
    ∂ log p_y / ∂z_j = 1[j = y] − p_j, ∂H / ∂z_j = −p_j (log p_j + H) and ∂K / ∂z_j = p_j (log p_j − log q_j − K).
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        temperature: float,
        with_sum_pi_squared: bool,
        reference: LazyLogits | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        highest = logits.new_empty(logits.shape[0], dtype=dtype)
        log_sum, label_logprob, entropy = (torch.empty_like(highest) for _ in range(3))
        sum_pi_squared = torch.empty_like(log_sum) if with_sum_pi_squared else None
        exact_kl = torch.empty_like(log_sum) if reference is not None else None
        for rows in _chunks(logits, reference):
            highest[rows] = logits[rows].amax(-1).to(dtype)
            z = _lowered(logits[rows], highest[rows], temperature)
            p = z.exp()
            total = p.sum(-1)
            p.div_(total[:, None])
            log_sum[rows] = total.log_()
            logp = z.sub_(log_sum[rows, None])
            label_logprob[rows] = logp.gather(1, labels[rows, None]).squeeze(1)
            if sum_pi_squared is not None:
                sum_pi_squared[rows] = p.square().sum(-1)
            if exact_kl is not None:
                log_q = _log_q(reference, rows, temperature, dtype)
                exact_kl[rows] = log_q.neg_().add_(logp).mul_(p).sum(-1)
            entropy[rows] = -(p.mul_(logp)).sum(-1)
        ctx.temperature, ctx.reference = temperature, reference
        ctx.save_for_backward(logits, labels, highest, log_sum, entropy, exact_kl)
        ctx.set_materialize_grads(False)
        if sum_pi_squared is not None:
            ctx.mark_non_differentiable(sum_pi_squared)
        return label_logprob, entropy, sum_pi_squared, exact_kl

    @staticmethod
    def backward(
        ctx: Any,
        grad_logprobs: Tensor | None,
        grad_entropy: Tensor | None,
        grad_sum_pi_squared: None,
        grad_kl: Tensor | None,
    ) -> tuple[Tensor, None, None, None, None]:
        logits, labels, highest, log_sum, entropy, exact_kl = ctx.saved_tensors
        gradient = cast(Tensor, logits.detach())
        for rows in _chunks(gradient, ctx.reference):
            logp = _lowered(gradient[rows], highest[rows], ctx.temperature).sub_(log_sum[rows, None])
            p = logp.exp()
            # dL/dz_j = g_y 1[j = y] − p_j slope_j, slope_j = g_y + g_H (log p_j + H) − g_K (log p_j − log q_j − K)
            slope = torch.zeros_like(entropy[rows, None]) if grad_logprobs is None else grad_logprobs[rows, None]
            if grad_kl is not None:
                log_q = _log_q(ctx.reference, rows, ctx.temperature, entropy.dtype)
                slope = slope + log_q.sub_(logp).add_(exact_kl[rows, None]).mul_(grad_kl[rows, None])
            if grad_entropy is not None:
                slope = logp.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(slope)
            dz = p.mul_(slope).neg_()
            if grad_logprobs is not None:
                dz.scatter_add_(1, labels[rows, None], grad_logprobs[rows, None])
            gradient[rows] = dz.div_(ctx.temperature)
        return gradient, None, None, None, None


def _lowered(logits: Tensor, highest: Tensor, temperature: float) -> Tensor:
    """[C, V], [C] → (logits − highest) / temperature, a copy: large logits would round their logarithms."""
    return (logits.to(highest.dtype) - highest[:, None]).div_(temperature)


def _log_q(reference: LazyLogits | None, rows: slice, temperature: float, dtype: torch.dtype) -> Tensor:
    """The reference's log-probabilities [C, V] of a chunk, in memory of the caller's."""
    assert reference is not None
    return torch.log_softmax(reference.chunk(rows).to(dtype) / temperature, dim=-1)


def _chunks(logits: Tensor, reference: LazyLogits | None) -> Iterator[slice]:
    num_elements = _CPU_CHUNK_ELEMENTS if logits.device.type == "cpu" else _GPU_CHUNK_ELEMENTS
    num_rows = max(1 if reference is None else _REFERENCE_ROWS, num_elements // logits.shape[1])
    for start in range(0, logits.shape[0], num_rows):
        yield slice(start, start + num_rows)
