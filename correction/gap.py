"""How far two policies are apart on the tokens that one of them sampled.

Owns divergences and perplexities of two sets of log-probabilities; in the loop those are π_prox and μ.
Numbers for people: detached, summed in float64, finite for any finite input, 0 of nothing.

Legend: N sequences, T tokens; M sequences that have a token in the mask; ρ = p/q, q the policy that sampled.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from correction.masked import masked_max, masked_mean
from correction.ratios import LOG_RATIO_BOUND, clamp_log
from correction.rows import TokenRows
from correction.spread import Moments, Spread


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
    """The mean of ρ − 1, which keeps what is near 1 exact."""
    growth_scatter: Tensor
    largest: Tensor
    """|log ρ|"""

    @classmethod
    def of(cls, rows: TokenRows) -> "GapRows":
        """Sums them."""
        growth = rows.mean(rows.growth)
        return cls(
            num_tokens=rows.num_tokens,
            numerator=rows.numerator.sum(-1),
            denominator=rows.denominator.sum(-1),
            difference=rows.log_differences.sum(-1),
            excess=rows.excess.sum(-1),
            growth=growth,
            growth_scatter=rows.scatter(rows.growth, growth),
            largest=rows.peak(rows.log_differences.abs()),
        )


def summarize_gap(rows: GapRows) -> PolicyGap:
    """The gap, of the sums over all sequences, [N] float64."""
    is_counted = rows.num_tokens > 0
    lengths = rows.num_tokens.clamp(min=1)
    tokens = rows.num_tokens.sum()
    per_token = tokens.clamp(min=1)
    growth = Moments.merged(rows.num_tokens, rows.growth, rows.growth_scatter)
    products = clamp_log(rows.difference)
    log_perplexity, sampler = -rows.numerator / lengths, -rows.denominator / lengths
    perplexity_gap = -rows.difference / lengths

    def mean(values: Tensor) -> float:
        return float(masked_mean(values, is_counted))

    return PolicyGap(
        num_tokens=int(tokens),
        num_sequences=int(is_counted.sum()),
        max_abs=float(masked_max(rows.largest, is_counted)),
        k1=float(-rows.difference.sum() / per_token),
        k3=float(rows.excess.sum() / per_token),
        chi2_token=float(growth.variance + growth.mean * (growth.mean + 2)),
        chi2_sequence=mean((2 * products).expm1()),
        ess_token=Moments(1 + growth.mean, growth.variance).effective_share if tokens > 0 else 0.0,
        ess_sequence=Moments.of_sequences(products.exp(), is_counted).effective_share,
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
