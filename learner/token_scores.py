"""From hidden states to what a policy says of its tokens, with exact gradients and no matrix of logits.

Owns the output layer of a policy and the arithmetic between it and `TokenScores`. Logits are made tile by tile, and
once more in the backward pass: of the M·V numbers no more than a tile stands in memory at a time. A tile's logits are
multiplied in the weight's number format and taken to float32 from there. Knows nothing of what stands below.

Legend: M scored tokens, R of them in a tile, H hidden size; V words of this rank's part of the vocabulary, K of them
in a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learner.backend import LazyLogits, TokenScores
from learner.logit_statistics import LogitStatistics, lowered, measure
from learner.vocabulary import VocabularyShard

_CPU_TILE = (256, 2048)
"""R and K: its caches hold the logits, and what makes them."""
_GPU_TILE = (2048, 16384)
"""Few and large ones."""


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """A policy's output layer, or one rank's part of it."""

    weight: Tensor
    """[≥ V, H]: a row a word; rows behind V are padding and get no gradient."""
    vocabulary: VocabularyShard
    gradient: Tensor | None = None
    """[≥ V, H] float32, that the backward pass adds to instead of returning a gradient, so that many micro-batches add
    up in float32 and no second matrix of that size is needed. None: the gradient is autograd's."""

    def logits(self, hidden: Tensor, words: slice) -> Tensor:
        """[R, H] to logits [R, K] of some words of this part, float32 or wider, in memory of the caller's."""
        logits = torch.mm(hidden, self.weight[words].t())
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True, kw_only=True)
class HiddenLogits:
    """`LazyLogits` over the hidden states of a forward pass."""

    hidden: Tensor
    """[M, H]"""
    layer: OutputLayer

    @torch.no_grad()
    def tile(self, rows: slice, words: slice) -> Tensor:
        """Logits [R, K]."""
        return self.layer.logits(self.hidden[rows], words)


def score_tokens(
    hidden: Tensor,
    layer: OutputLayer,
    labels: Tensor,
    *,
    temperature: float,
    with_sum_pi_squared: bool = False,
    reference: LazyLogits | None = None,
) -> TokenScores:
    """Scores each token by the hidden state before it.

    Where ranks share the vocabulary all call it at once, with the same arguments but their own part of the layer; then
    each gets the same scores, and of the hidden states' gradient the part that its words give. One collective.

    Args:
        hidden: [M, H], in the weight's number format.
        layer: what makes logits of them.
        labels: [M] int64, words of the whole vocabulary.
        temperature: above 0; logits are divided by it, the reference's too.
        with_sum_pi_squared: fill that field.
        reference: fill `exact_kl`, with gradient, by what the reference says of the same tokens; its vocabulary is
            shared among the ranks in the same way.

    Returns:
        [M] float32 each, or float64 where the logits are.
    """
    assert hidden.ndim == 2 and labels.shape == hidden.shape[:1], (hidden.shape, labels.shape)
    assert temperature > 0.0, temperature
    asked = _Asked(layer=layer, temperature=temperature, squares=with_sum_pi_squared, reference=reference)
    logprobs, entropy, sum_pi_squared, exact_kl = _TokenScores.apply(  # type: ignore[no-untyped-call]
        hidden, layer.weight, labels, asked
    )
    return TokenScores(logprobs=logprobs, entropy=entropy, sum_pi_squared=sum_pi_squared, exact_kl=exact_kl)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Arguments without gradient."""

    layer: OutputLayer
    temperature: float
    squares: bool
    reference: LazyLogits | None

    def tile(self, hidden: Tensor, rows: slice, words: slice) -> tuple[Tensor, Tensor | None]:
        """Logits [R, K] of policy and reference, in memory of the caller's."""
        theirs = None if self.reference is None else self.reference.tile(rows, words)
        return self.layer.logits(hidden[rows], words), theirs

    def measure(self, hidden: Tensor, labels: Tensor) -> LogitStatistics:
        """Of the whole vocabulary, [M] each."""
        vocabulary = self.layer.vocabulary
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        # What stands for a part of no words, and is written over by those of others.
        mine = torch.stack(LogitStatistics.of_nothing(hidden.shape[0], hidden.new_empty(0, dtype=dtype)))
        for rows in _row_tiles(hidden.shape[0], vocabulary.size, hidden.device):
            parts = []
            for words in _word_tiles(vocabulary.size, hidden.device):
                logits, theirs = self.tile(hidden, rows, words)
                places = labels[rows] - (vocabulary.first + words.start)
                parts.append(
                    torch.stack(
                        measure(logits, places, theirs, temperature=self.temperature, with_squares=self.squares)
                    )
                )
            if parts:
                mine[:, rows] = torch.stack(LogitStatistics.combine(torch.stack(parts), self.temperature))
        return LogitStatistics.combine(vocabulary.gather(mine), self.temperature)


class _TokenScores(torch.autograd.Function):
    """hidden [M, H], weight [≥ V, H], labels [M] → the fields of `TokenScores`, [M] each.

    With z and w as in `LogitStatistics`, p = softmax(z) of the whole vocabulary, H the entropy and
    K = Σ_v p_v (log p_v − log q_v):
    ∂ log p_y / ∂z_j = 1[j = y] − p_j, ∂H / ∂z_j = −p_j (log p_j + H) and ∂K / ∂z_j = p_j (log p_j − log q_j − K).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, asked: _Asked
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        said = asked.measure(hidden, labels)
        ctx.asked = asked
        # The weight, too: autograd then sees to it that nobody has changed it.
        ctx.save_for_backward(hidden, weight, labels, *said)
        ctx.set_materialize_grads(False)
        sum_pi_squared = said.sum_pi_squared if asked.squares else None
        if sum_pi_squared is not None:
            ctx.mark_non_differentiable(sum_pi_squared)
        return said.logprobs, said.entropy, sum_pi_squared, None if asked.reference is None else said.exact_kl

    @staticmethod
    def backward(
        ctx: Any, of_logprobs: Tensor | None, of_entropy: Tensor | None, of_squares: None, of_kl: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, _, labels, *said = ctx.saved_tensors
        slopes = _Slopes.of(LogitStatistics(*said), ctx.asked.temperature, of_logprobs, of_entropy, of_kl)
        of_hidden, of_weight = _back_propagate(hidden, labels, ctx.asked, slopes, needs_weight=ctx.needs_input_grad[1])
        return of_hidden, of_weight, None, None


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
    hidden: Tensor, labels: Tensor, asked: _Asked, slopes: _Slopes, *, needs_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """What the words of this rank give of the gradients of hidden states and weight."""
    layer, vocabulary = asked.layer, asked.layer.vocabulary
    wide = torch.promote_types(hidden.dtype, torch.float32)
    of_hidden = torch.zeros_like(hidden)
    of_weight = None
    if needs_weight:
        of_weight = torch.zeros_like(layer.weight, dtype=wide) if layer.gradient is None else layer.gradient
    for rows in _row_tiles(hidden.shape[0], vocabulary.size, hidden.device):
        states = hidden[rows]
        of_states = of_hidden[rows] if hidden.dtype == wide else torch.zeros_like(states, dtype=wide)
        for words in _word_tiles(vocabulary.size, hidden.device):
            of_logits = slopes.of_logits(*asked.tile(hidden, rows, words), rows, asked.temperature)
            if slopes.label is not None:
                _add_at(of_logits, labels[rows] - (vocabulary.first + words.start), slopes.label[rows])
            narrow = of_logits.to(hidden.dtype)
            _add_product(of_states, narrow, layer.weight[words])
            if of_weight is not None:
                _add_product(of_weight[words], narrow.t(), states)
        if hidden.dtype != wide:
            of_hidden[rows] = of_states
    if layer.gradient is not None and needs_weight:
        # Autograd's hooks wait for a gradient: here is one without memory.
        return of_hidden, layer.weight.new_zeros(()).expand_as(layer.weight)
    return of_hidden, of_weight


def _add_at(rows: Tensor, places: Tensor, values: Tensor) -> None:
    """Adds a value to one place of each of the rows [R, K], where that is one of its K."""
    inside = places.clamp(0, rows.shape[1] - 1)
    rows.scatter_add_(1, inside[:, None], values.masked_fill(inside != places, 0.0)[:, None])


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a·b, added in the wider format of the total."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += torch.mm(a, b)


def _tile_size(device: torch.device) -> tuple[int, int]:
    return _CPU_TILE if device.type == "cpu" else _GPU_TILE


def _row_tiles(num_rows: int, num_words: int, device: torch.device) -> Iterator[slice]:
    """Of fewer words more rows."""
    most_rows, most_words = _tile_size(device)
    return _slices(num_rows, max(most_rows, most_rows * most_words // max(num_words, 1)))


def _word_tiles(num_words: int, device: torch.device) -> Iterator[slice]:
    return _slices(num_words, _tile_size(device)[1])


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
