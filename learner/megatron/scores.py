"""Log-probabilities and entropies from logits, with exact gradients and no second copy of the logits.

Owns the arithmetic between a row of logits and `TokenScores`. Knows nothing of models.

Legend: T tokens, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Iterator
from typing import Any

import torch

from learner.backend import TokenScores
from learner.packing import PackedSequences

# Temporaries of a chunk are [C, V] float32: 4 Mi elements are 16 MiB each.
_CHUNK_ELEMENTS = 1 << 22


def token_scores(logits: torch.Tensor, sequences: PackedSequences, *, temperature: float) -> TokenScores:
    """Scores each token by the logits of the token before it.

    Args:
        logits: [T, V], float32 or narrower. Consumed: the backward pass overwrites it with its gradient.
        sequences: the T tokens that the logits were computed from.
        temperature: above 0; logits are divided by it.

    Returns:
        [T] float32 each; 0 at the first token of each sequence, which nothing predicts.
    """
    assert logits.ndim == 2 and logits.shape[0] == sequences.num_tokens, (logits.shape, sequences.num_tokens)
    assert temperature > 0.0, temperature
    tokens = sequences.token_ids.to(logits.device)
    # Row t predicts token t + 1; the last row predicts nothing and is masked like every sequence's last.
    logprobs, entropy = _RowScores.apply(logits, tokens.roll(-1), temperature)  # type: ignore[no-untyped-call]
    is_first = (sequences.position_ids == 0).to(logits.device)
    zero = logprobs.new_zeros(())
    return TokenScores(
        logprobs=torch.where(is_first, zero, logprobs.roll(1)),
        entropy=torch.where(is_first, zero, entropy.roll(1)),
    )


class _RowScores(torch.autograd.Function):
    """logits [T, V], labels [T] → log p(label) [T], entropy [T].

    With z = logits / temperature, p = softmax(z), H the entropy:
    ∂ log p_y / ∂z_j = 1[j = y] − p_j and ∂H / ∂z_j = −p_j (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_normaliser = logits.new_empty(logits.shape[0], dtype=torch.float32)
        label_logprob = torch.empty_like(log_normaliser)
        entropy = torch.empty_like(log_normaliser)
        for rows in _chunks(logits):
            z = logits[rows].float() / temperature
            log_normaliser[rows] = torch.logsumexp(z, dim=-1)
            logp = z.sub_(log_normaliser[rows, None])
            label_logprob[rows] = logp.gather(1, labels[rows, None]).squeeze(1)
            entropy[rows] = -(logp.exp().mul_(logp)).sum(-1)
        ctx.temperature = temperature
        ctx.save_for_backward(logits, labels, log_normaliser, entropy)
        return label_logprob, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprobs: torch.Tensor, grad_entropy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, labels, log_normaliser, entropy = ctx.saved_tensors
        gradient = logits.detach()
        for rows in _chunks(logits):
            logp = (gradient[rows].float() / ctx.temperature).sub_(log_normaliser[rows, None])
            p = logp.exp()
            # dL/dz_j = g_logp (1[j = y] − p_j) − g_H p_j (log p_j + H)
            slope = logp.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(grad_logprobs[rows, None])
            dz = p.mul_(slope).neg_()
            dz.scatter_add_(1, labels[rows, None], grad_logprobs[rows, None])
            gradient[rows] = dz.div_(ctx.temperature)
        return gradient, None, None


def _chunks(logits: torch.Tensor) -> Iterator[slice]:
    num_rows = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    for start in range(0, logits.shape[0], num_rows):
        yield slice(start, start + num_rows)
