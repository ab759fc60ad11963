"""How far the probabilities of two policies are apart, rather than their logarithms.

Owns the numbers that show a broken pairing of engine and learner at a glance. Detached, in float64.

Legend: N sequences, T tokens; n sequences of a chunk; p and q the probabilities of the sampled tokens.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from correction.masked import masked_max
from correction.ratios import clamp_log, ratio
from correction.rows import SequenceTable, TokenRows, token_chunks
from correction.spread import Moments


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
    """Of each sequence of a chunk, [n]: means, and sums of squared deviations from them."""

    num_tokens: Tensor
    largest: Tensor
    gap: Tensor
    """|p − q|"""
    gap_scatter: Tensor
    difference: Tensor
    """p − q"""
    difference_scatter: Tensor
    numerator: Tensor
    numerator_scatter: Tensor
    denominator: Tensor
    denominator_scatter: Tensor

    @classmethod
    def of(cls, rows: TokenRows) -> "ProbabilityRows":
        """Sums them up, in float64: a correlation is a difference of what is nearly equal."""
        p = ratio(clamp_log(rows.numerator.double())) * rows.indicator
        q = ratio(clamp_log(rows.denominator.double())) * rows.indicator
        moments = []
        for values in ((p - q).abs(), p - q, p, q):
            mean = rows.mean(values)
            moments += [mean, rows.scatter(values, mean)]
        return cls(rows.num_tokens, rows.peak((p - q).abs()), *moments)


@torch.no_grad()
def probability_gap(numerator: Tensor, denominator: Tensor, mask: Tensor) -> ProbabilityGap:
    """Compares log p and log q [N, T] over the mask [N, T] bool."""
    assert numerator.shape == denominator.shape == mask.shape, (numerator.shape, denominator.shape, mask.shape)
    table = SequenceTable(mask)
    for where in token_chunks(mask):
        table.put(where, ProbabilityRows.of(TokenRows.of(numerator[where], denominator[where], mask[where])))
    rows = ProbabilityRows(*table.columns)
    num = rows.num_tokens.sum()
    gap = Moments.merged(rows.num_tokens, rows.gap, rows.gap_scatter)
    return ProbabilityGap(
        num_tokens=int(num),
        max=float(masked_max(rows.largest, rows.num_tokens > 0)),
        mean=float(gap.mean),
        std=float(gap.sample_variance(num).sqrt()),
        correlation=_correlation(rows),
    )


def _correlation(rows: ProbabilityRows) -> float:
    p = Moments.merged(rows.num_tokens, rows.numerator, rows.numerator_scatter).variance
    q = Moments.merged(rows.num_tokens, rows.denominator, rows.denominator_scatter).variance
    difference = Moments.merged(rows.num_tokens, rows.difference, rows.difference_scatter).variance
    scale = float((p * q).sqrt())
    # The covariance, by var(p − q) = var p + var q − 2·cov.
    return float(p + q - difference) / 2 / scale if scale > 0 else 0.0
