"""What a few sums over some of a row's logits say of the whole row.

Owns the statistics of parts of a vocabulary and how those of parts make those of the whole: the parts may be tiles
of a large matrix, or the shards of several ranks, or both. Knows nothing of models, gradients or ranks.

With logits l at temperature T, and m the largest of a part: z = (l − m) / T and e = exp(z). With logits of a
reference, n and w are to them what m and z are to l.

Legend: R rows, K words of a part, P parts.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

FAR = -1e25
"""In the place of a logit that is not there: its e is 0, and no product with it is infinite, as −∞·0 would be NaN."""


class LogitStatistics(NamedTuple):
    """Of a part of each row, or of the whole; [R] each, in float32, or in float64 where the logits are."""

    highest: Tensor
    """m"""
    total: Tensor
    """Σ e"""
    weighted: Tensor
    """Σ e z"""
    squares: Tensor
    """Σ e²; 0 where not asked for."""
    label: Tensor
    """z of the label; −∞ where it is no word of the part."""
    their_highest: Tensor
    """n; 0 without a reference."""
    their_total: Tensor
    """Σ exp(w); 0 without a reference."""
    cross: Tensor
    """Σ e (z − w); 0 without a reference."""

    @classmethod
    def of_nothing(cls, num_rows: int, like: Tensor) -> Self:
        """Of a part without words, which changes nothing."""
        zero = like.new_zeros(num_rows)
        far, absent = torch.full_like(zero, FAR), torch.full_like(zero, -torch.inf)
        return cls(
            highest=far,
            total=zero,
            weighted=zero,
            squares=zero,
            label=absent,
            their_highest=far,
            their_total=zero,
            cross=zero,
        )

    @classmethod
    def combine(cls, parts: Tensor, temperature: float) -> Self:
        """[P, 8, R], the fields of each part in their order, to those of all parts together."""
        if len(parts) == 1:
            return cls(*parts[0])
        given = cls(*parts.unbind(1))
        highest, their_highest = given.highest.amax(0), given.their_highest.amax(0)
        shift = ((given.highest - highest) / temperature).clamp_(min=FAR)
        their_shift = ((given.their_highest - their_highest) / temperature).clamp_(min=FAR)
        scale = shift.exp()
        return cls(
            highest=highest,
            total=(scale * given.total).sum(0),
            weighted=(scale * (given.weighted + shift * given.total)).sum(0),
            squares=(scale.square() * given.squares).sum(0),
            label=(given.label + shift).amax(0),
            their_highest=their_highest,
            their_total=(their_shift.exp() * given.their_total).sum(0),
            cross=(scale * (given.cross + (shift - their_shift) * given.total)).sum(0),
        )

    @property
    def log_total(self) -> Tensor:
        """log Σ e: log p = z − log Σ e."""
        return self.total.log()

    @property
    def logprobs(self) -> Tensor:
        """log p(label), nats."""
        return self.label - self.log_total

    @property
    def entropy(self) -> Tensor:
        """−Σ p log p, nats: a sum of two terms that are not negative."""
        return self.log_total - self.weighted / self.total

    @property
    def sum_pi_squared(self) -> Tensor:
        """Σ p²"""
        return self.squares / self.total.square()

    @property
    def exact_kl(self) -> Tensor:
        """Σ p (log p − log q), nats, q the reference's."""
        return self.cross / self.total - self.log_total + self.their_total.log()


def lowered(logits: Tensor, highest: Tensor, temperature: float) -> Tensor:
    """[R, K], [R] → z, in the memory of the logits: lowered before divided, since large ones would round."""
    logits.sub_(highest[:, None])
    return logits if temperature == 1.0 else logits.div_(temperature)


def measure(
    logits: Tensor,
    theirs: Tensor | None,
    places: Tensor,
    is_inside: Tensor,
    *,
    temperature: float,
    with_squares: bool,
) -> LogitStatistics:
    """Statistics of a part.

    Args:
        logits: [R, K], K > 0; overwritten.
        theirs: [R, K] of a reference; overwritten.
        places: [R, 1] int64: of the labels among the words of the part; any place for a label that is none of them.
        is_inside: [R, 1] bool: whether it is one.
        temperature: above 0.
        with_squares: fill that field.
    """
    highest = logits.amax(1)
    z = lowered(logits, highest, temperature)
    e = z.exp()
    total, zero = e.sum(1), highest.new_zeros(highest.shape)
    label = z.gather(1, places).masked_fill_(~is_inside, -torch.inf)[:, 0]
    squares = e.square().sum(1) if with_squares else zero
    their_highest, their_total, cross = zero, zero, zero
    if theirs is not None:
        their_highest = theirs.amax(1)
        w = lowered(theirs, their_highest, temperature)
        their_total = w.exp().sum(1)
        cross = w.neg_().add_(z).mul_(e).sum(1)
    weighted = z.mul_(e).sum(1)
    return LogitStatistics(highest, total, weighted, squares, label, their_highest, their_total, cross)
