"""How far two policies are apart on the tokens that one of them sampled.

Owns divergences and perplexities of two sets of log-probabilities; in the loop those are π_prox and μ.
Numbers for people: detached, summed in float64, finite for any finite input, 0 of nothing.

Legend: N sequences, T tokens; M sequences that have a token in the mask; ρ = p/q, q the policy that sampled.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from correction.masked import masked_mean
from correction.ratios import LOG_RATIO_BOUND, clamp_log, excess
from correction.row_chunks import row_chunks
from correction.rows import TokenRows, stack_rows
from correction.spread import Spread, effective_share


@dataclass(frozen=True, kw_only=True)
class PolicyGap:
    """Of p from q. Sequence numbers are means over the M sequences."""

    num_tokens: int
    num_sequences: int
    max_abs: float
    """Largest |log ρ|, not clamped, nats."""
    k1: float
    """KL(q‖p) as the mean of −log ρ: unbiased, may be negative."""
    k3: float
    """The same as the mean of ρ − 1 − log ρ: never negative, less variance (log-ratio clamped)."""
    chi2_token: float
    """χ²(p‖q) of a token: the mean of ρ² less 1."""
    chi2_sequence: float
    """The same of sequences: the mean of (Πρ)² less 1, the log of the product clamped."""
    ess_token: float
    """Effective sample size of the ratios ρ as a share: what correcting in full would leave."""
    ess_sequence: float
    """The same of the products Πρ."""
    log_perplexity: float
    """Of p: the mean over sequences of −log p per token."""
    sampler_log_perplexity: float
    """Of q."""
    perplexity: float
    """The mean over sequences of the exponential, at most e^20."""
    sampler_perplexity: float
    log_perplexity_gap: Spread
    """Per sequence: log-perplexity of p less that of q."""
    log_perplexity_gap_abs: float
    """Its mean size."""
    perplexity_ratio: float
    """The mean of its exponential."""


class GapRows(NamedTuple):
    """Sums over each sequence of a chunk, [n]."""

    num_tokens: Tensor
    numerator: Tensor
    denominator: Tensor
    difference: Tensor
    excess: Tensor
    growth: Tensor
    """Of ρ − 1, which keeps what is near 1 exact."""
    growth_square: Tensor
    largest: Tensor
    """|log ρ|"""

    @classmethod
    def of(cls, rows: TokenRows) -> "GapRows":
        """Sums them."""
        growth = rows.log_ratios.expm1()
        return cls(
            num_tokens=rows.indicator.sum(-1),
            numerator=rows.numerator.sum(-1),
            denominator=rows.denominator.sum(-1),
            difference=rows.log_differences.sum(-1),
            excess=excess(rows.log_ratios).sum(-1),
            growth=growth.sum(-1),
            growth_square=growth.square().sum(-1),
            largest=torch.linalg.vector_norm(rows.log_differences, ord=torch.inf, dim=-1),
        )


@torch.no_grad()
def policy_gap(numerator: Tensor, denominator: Tensor, mask: Tensor) -> PolicyGap:
    """Compares p and q on the tokens that q sampled.

    Args:
        numerator: [N, T] log p; in the loop π_prox.
        denominator: [N, T] log q; in the loop μ.
        mask: [N, T] bool.
    """
    assert numerator.shape == denominator.shape == mask.shape, (numerator.shape, denominator.shape, mask.shape)
    chunks = [GapRows.of(TokenRows.of(numerator[s], denominator[s], mask[s])) for s in row_chunks(mask)]
    return summarize_gap(GapRows(*stack_rows(chunks)))


def summarize_gap(rows: GapRows) -> PolicyGap:
    """The gap, of the sums over all sequences, [N] float64."""
    is_counted = rows.num_tokens > 0
    lengths = rows.num_tokens.clamp(min=1)
    tokens, num_sequences = rows.num_tokens.sum(), is_counted.sum()
    per_token = tokens.clamp(min=1)
    growth, growth_square = rows.growth.sum(), rows.growth_square.sum()
    products = clamp_log(rows.difference)
    log_perplexity, sampler = -rows.numerator / lengths, -rows.denominator / lengths
    perplexity_gap = -rows.difference / lengths

    def mean(values: Tensor) -> float:
        return float(masked_mean(values, is_counted))

    return PolicyGap(
        num_tokens=int(tokens),
        num_sequences=int(num_sequences),
        max_abs=float(rows.largest.max()) if len(rows.largest) else 0.0,
        k1=float(-rows.difference.sum() / per_token),
        k3=float(rows.excess.sum() / per_token),
        chi2_token=float((growth_square + 2 * growth) / per_token),
        chi2_sequence=mean((2 * products).expm1()),
        ess_token=effective_share(tokens + growth, tokens + 2 * growth + growth_square, tokens),
        ess_sequence=effective_share(
            (products.exp() * is_counted).sum(), ((2 * products).exp() * is_counted).sum(), num_sequences
        ),
        log_perplexity=mean(log_perplexity),
        sampler_log_perplexity=mean(sampler),
        perplexity=mean(_exp(log_perplexity)),
        sampler_perplexity=mean(_exp(sampler)),
        log_perplexity_gap=Spread.of_sequences(perplexity_gap, is_counted),
        log_perplexity_gap_abs=mean(perplexity_gap.abs()),
        perplexity_ratio=mean(_exp(perplexity_gap)),
    )


def _exp(values: Tensor) -> Tensor:
    return values.clamp(max=LOG_RATIO_BOUND).exp()
