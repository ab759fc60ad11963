"""From hidden states to what a policy says of its tokens, with exact gradients and no matrix of logits.

Owns the arithmetic between an output layer and `TokenScores`. Logits are made tile by tile, and once more in the
backward pass: of the M·V numbers no more than a tile stands in memory at a time. Knows nothing of what stands below.

Legend: M scored tokens, R of them in a tile, H hidden size; V words of this rank's part of the vocabulary, K of them
in a tile.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learner.backend import LazyLogits, TokenScores
from learner.logit_statistics import FAR, LogitStatistics, lowered, measure
from learner.output_layer import OutputLayer, tiles_of_rows, tiles_of_whole_rows, tiles_of_words
from learner.products import multiply, multiply_transposed
from learner.truncation import Truncation


def score_tokens(
    hidden: Tensor,
    layer: OutputLayer,
    labels: Tensor,
    *,
    temperature: float,
    truncation: Truncation | None = None,
    with_sum_pi_squared: bool = False,
    reference: LazyLogits | None = None,
) -> TokenScores:
    """Scores each token by the hidden state before it.

    Where ranks share the vocabulary all call it at once, with the same arguments but their own part of the layer; then
    each gets the same scores, and of the hidden states' gradient the part that its words give. One exchange, and with a
    truncation some more.

    Args:
        hidden: [M, H], in the weight's number format.
        layer: what makes logits of them.
        labels: [M] int64, words of the whole vocabulary.
        temperature: above 0; logits are divided by it, the reference's too.
        truncation: score the words that it keeps, the label always among them; the reference over the same ones.
        with_sum_pi_squared: fill that field.
        reference: fill `exact_kl`, with gradient, by what the reference says of the same tokens; its vocabulary is
            shared among the ranks in the same way.

    Returns:
        [M] float32 each, or float64 where the logits are.
    """
    assert hidden.ndim == 2 and labels.shape == hidden.shape[:1], (hidden.shape, labels.shape)
    assert temperature > 0.0, temperature
    floors = None
    if truncation is not None:
        floors = _floors(hidden.detach(), layer, truncation, temperature)
    asked = _Asked(layer, labels, temperature, floors, with_sum_pi_squared, reference)
    logprobs, entropy, sum_pi_squared, exact_kl = _TokenScores.apply(  # type: ignore[no-untyped-call]
        hidden, layer.weight, asked
    )
    return TokenScores(logprobs=logprobs, entropy=entropy, sum_pi_squared=sum_pi_squared, exact_kl=exact_kl)


@torch.no_grad()
def _floors(hidden: Tensor, layer: OutputLayer, truncation: Truncation, temperature: float) -> Tensor:
    """[M]: the smallest logit that sampling keeps."""
    vocabulary = layer.vocabulary
    # As many rows at a time on every rank, of however many true words.
    tiles = tiles_of_whole_rows(hidden.shape[0], layer.weight.shape[0], hidden.device)
    floors = [
        truncation.floors(
            layer.logits(hidden[rows], slice(0, vocabulary.size)), temperature=temperature, gather=vocabulary.gather
        )
        for rows in tiles
    ]
    return torch.cat(floors) if floors else hidden.new_empty(0)


@dataclass(frozen=True)
class _Asked:
    """Arguments without gradient."""

    layer: OutputLayer
    labels: Tensor
    temperature: float
    floors: Tensor | None
    squares: bool
    reference: LazyLogits | None

    def tile(self, hidden: Tensor, rows: slice, words: slice) -> tuple[Tensor, Tensor | None]:
        """Logits [R, K] of policy and reference, in memory of the caller's."""
        logits = self.layer.logits(hidden[rows], words)
        theirs = None if self.reference is None else self.reference.tile(rows, words)
        if self.floors is not None:
            dropped = logits < self.floors[rows, None]
            places, is_inside = self.places(rows, words)
            dropped.scatter_(1, places, dropped.gather(1, places) & ~is_inside)
            logits.masked_fill_(dropped, FAR)
            theirs = None if theirs is None else theirs.masked_fill_(dropped, FAR)
        return logits, theirs

    def places(self, rows: slice, words: slice) -> tuple[Tensor, Tensor]:
        """Where the labels stand in a tile, and whether they do at all: [R, 1] each."""
        places = self.labels[rows, None] - (self.layer.vocabulary.first + words.start)
        inside = places.clamp(0, words.stop - words.start - 1)
        return inside, inside == places

    def measure(self, hidden: Tensor) -> LogitStatistics:
        """Of the whole vocabulary, [M] each."""
        vocabulary = self.layer.vocabulary
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        # What stands for a part of no words, and is written over by those of others.
        mine = torch.stack(LogitStatistics.of_nothing(hidden.shape[0], hidden.new_empty(0, dtype=dtype)))
        for rows in tiles_of_rows(hidden.shape[0], vocabulary.size, hidden.device):
            parts = []
            for words in tiles_of_words(vocabulary.size, hidden.device):
                tile, places = self.tile(hidden, rows, words), self.places(rows, words)
                said = measure(*tile, *places, temperature=self.temperature, with_squares=self.squares)
                parts.append(torch.stack(said))
            if parts:
                mine[:, rows] = torch.stack(LogitStatistics.combine(torch.stack(parts), self.temperature))
        return LogitStatistics.combine(vocabulary.gather(mine), self.temperature)


class _TokenScores(torch.autograd.Function):
    """hidden [M, H], weight [≥ V, H] → the fields of `TokenScores`, [M] each.

    With z and w as in `LogitStatistics`, p = softmax(z) of the whole vocabulary, H the entropy and
    K = Σ_v p_v (log p_v − log q_v):
    ∂ log p_y / ∂z_j = 1[j = y] − p_j, ∂H / ∂z_j = −p_j (log p_j + H) and ∂K / ∂z_j = p_j (log p_j − log q_j − K).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, asked: _Asked
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        said = asked.measure(hidden)
        ctx.asked = asked
        # The weight, too: autograd then sees to it that nobody has changed it.
        ctx.save_for_backward(hidden, weight, *said)
        ctx.set_materialize_grads(False)
        sum_pi_squared = said.sum_pi_squared if asked.squares else None
        if sum_pi_squared is not None:
            ctx.mark_non_differentiable(sum_pi_squared)
        return said.logprobs, said.entropy, sum_pi_squared, None if asked.reference is None else said.exact_kl

    @staticmethod
    def backward(
        ctx: Any, of_logprobs: Tensor | None, of_entropy: Tensor | None, of_squares: None, of_kl: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None]:
        hidden, _, *said = ctx.saved_tensors
        slopes = _Slopes.of(LogitStatistics(*said), ctx.asked.temperature, of_logprobs, of_entropy, of_kl)
        of_hidden, of_weight = _back_propagate(hidden, ctx.asked, slopes, needs_weight=ctx.needs_input_grad[1])
        return of_hidden, of_weight, None


@dataclass(frozen=True, kw_only=True)
class _Slopes:
    """∂L/∂l_j = e_j (constant + policy z_j + reference w_j), and `label` more at the label; [M] each."""

    highest: Tensor
    their_highest: Tensor
    constant: Tensor
    policy: Tensor | None
    reference: Tensor | None
    label: Tensor | None

    @classmethod
    def of(
        cls,
        said: LogitStatistics,
        temperature: float,
        of_logprobs: Tensor | None,
        of_entropy: Tensor | None,
        of_kl: Tensor | None,
    ) -> "_Slopes":
        scale = 1.0 / (said.total * temperature)
        constant, policy, reference = torch.zeros_like(scale), None, None
        if of_logprobs is not None:
            constant = constant - of_logprobs
        if of_entropy is not None:
            constant = constant + of_entropy * (said.log_total - said.entropy)
            policy = -of_entropy * scale
        if of_kl is not None:
            constant = constant + of_kl * (said.their_total.log() - said.log_total - said.exact_kl)
            policy = of_kl * scale if policy is None else policy + of_kl * scale
            reference = -of_kl * scale
        return cls(
            highest=said.highest,
            their_highest=said.their_highest,
            constant=constant * scale,
            policy=policy,
            reference=reference,
            label=None if of_logprobs is None else of_logprobs / temperature,
        )

    def of_logits(self, logits: Tensor, theirs: Tensor | None, rows: slice, temperature: float) -> Tensor:
        """[R, K], what `label` says left out; overwrites both."""
        z = lowered(logits, self.highest[rows], temperature)
        e = z.exp()
        slope = self.constant[rows, None]
        if self.policy is not None:
            slope = z.mul_(self.policy[rows, None]).add_(slope)
        if self.reference is not None:
            assert theirs is not None
            w = lowered(theirs, self.their_highest[rows], temperature)
            slope = w.mul_(self.reference[rows, None]).add_(slope)
        return e.mul_(slope)


def _back_propagate(
    hidden: Tensor, asked: _Asked, slopes: _Slopes, *, needs_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """What the words of this rank give of the gradients of hidden states and weight."""
    layer, vocabulary = asked.layer, asked.layer.vocabulary
    wide = torch.promote_types(hidden.dtype, torch.float32)
    of_hidden = torch.zeros_like(hidden)
    of_weight = None
    if needs_weight:
        of_weight = torch.zeros_like(layer.weight, dtype=wide) if layer.gradient is None else layer.gradient
    for rows in tiles_of_rows(hidden.shape[0], vocabulary.size, hidden.device):
        states = hidden[rows]
        of_states = of_hidden[rows] if hidden.dtype == wide else torch.zeros_like(states, dtype=wide)
        for words in tiles_of_words(vocabulary.size, hidden.device):
            of_logits = slopes.of_logits(*asked.tile(hidden, rows, words), rows, asked.temperature)
            if slopes.label is not None:
                places, is_inside = asked.places(rows, words)
                of_logits.scatter_add_(1, places, torch.where(is_inside, slopes.label[rows, None], 0.0))
            narrow = of_logits.to(hidden.dtype)
            of_states += multiply(narrow, layer.weight[words].t())
            if of_weight is not None:
                of_weight[words] += multiply_transposed(narrow, states)
        if hidden.dtype != wide:
            of_hidden[rows] = of_states
    if layer.gradient is not None and needs_weight:
        # Autograd's hooks wait for a gradient: here is one without memory.
        return of_hidden, layer.weight.new_zeros(()).expand_as(layer.weight)
    return of_hidden, of_weight
