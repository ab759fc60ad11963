"""How far the probabilities of two policies are apart, rather than their logarithms.

Owns the numbers that show a broken pairing of engine and learner at a glance. Detached, summed in float64.

Legend: N sequences, T tokens; n sequences of a chunk; p and q the probabilities of the sampled tokens.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from correction.ratios import clamp_log, ratio
from correction.row_chunks import row_chunks
from correction.rows import TokenRows, stack_rows


@dataclass(frozen=True, kw_only=True)
class ProbabilityGap:
    """Of |p − q| over the mask; all 0 where it is empty."""

    num_tokens: int
    max: float
    mean: float
    std: float
    """The sample's (n − 1); 0 of a single token."""
    correlation: float
    """Pearson's, of p and q; 0 where one of them does not vary."""


class ProbabilityRows(NamedTuple):
    """Sums over each sequence of a chunk, [n]."""

    num_tokens: Tensor
    largest: Tensor
    gap: Tensor
    gap_square: Tensor
    numerator: Tensor
    denominator: Tensor
    numerator_square: Tensor
    denominator_square: Tensor
    product: Tensor

    @classmethod
    def of(cls, rows: TokenRows) -> "ProbabilityRows":
        """Sums them, in float64: the correlation is a difference of what is nearly equal."""
        p = ratio(clamp_log(rows.numerator.double())) * rows.indicator
        q = ratio(clamp_log(rows.denominator.double())) * rows.indicator
        gap = p - q
        return cls(
            num_tokens=rows.indicator.sum(-1),
            largest=torch.linalg.vector_norm(gap, ord=torch.inf, dim=-1),
            gap=gap.abs().sum(-1),
            gap_square=gap.square().sum(-1),
            numerator=p.sum(-1),
            denominator=q.sum(-1),
            numerator_square=p.square().sum(-1),
            denominator_square=q.square().sum(-1),
            product=(p * q).sum(-1),
        )


@torch.no_grad()
def probability_gap(numerator: Tensor, denominator: Tensor, mask: Tensor) -> ProbabilityGap:
    """Compares log p and log q [N, T] over the mask [N, T] bool."""
    assert numerator.shape == denominator.shape == mask.shape, (numerator.shape, denominator.shape, mask.shape)
    chunks = [ProbabilityRows.of(TokenRows.of(numerator[s], denominator[s], mask[s])) for s in row_chunks(mask)]
    rows = ProbabilityRows(*stack_rows(chunks))
    num = rows.num_tokens.sum()
    tokens = num.clamp(min=1)
    mean = rows.gap.sum() / tokens
    variance = (rows.gap_square.sum() / tokens - mean.square()).clamp(min=0) * num / (num - 1).clamp(min=1)
    mean_p, mean_q = rows.numerator.sum() / tokens, rows.denominator.sum() / tokens
    variance_p = (rows.numerator_square.sum() / tokens - mean_p.square()).clamp(min=0)
    variance_q = (rows.denominator_square.sum() / tokens - mean_q.square()).clamp(min=0)
    covariance = rows.product.sum() / tokens - mean_p * mean_q
    scale = float((variance_p * variance_q).sqrt())
    return ProbabilityGap(
        num_tokens=int(num),
        max=float(rows.largest.max()) if len(rows.largest) else 0.0,
        mean=float(mean),
        std=float(variance.sqrt()),
        correlation=float(covariance) / scale if scale > 0 else 0.0,
    )
