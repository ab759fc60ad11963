"""What a weighting made of the ratios, in numbers.

Owns the summary of a batch's weights before they were normalised, and of the ratios that they were made of.
Detached, summed in float64, 0 of nothing.

Legend: N sequences, T tokens; n sequences of a chunk; w a weight, r the ratio it was made of (shared at the level
of the correction).
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from correction.masked import masked_max, masked_min, masked_share
from correction.rows import TokenRows
from correction.spread import Moments, Spread
from correction.weights import TokenWeights, Weighting


@dataclass(frozen=True, kw_only=True)
class WeightReport:
    """Of the weights, before normalisation; `high` and `low` are shares of ratios beyond the weighting's marks."""

    tokens: Spread
    """Of a token's weight; std is the population's."""
    sequences: Spread
    """Of a sequence's mean weight."""
    max_deviation: float
    """Largest |w − 1| of a sequence's mean weight."""
    ess_token: float
    """Effective sample size of the tokens' weights as a share, in (0, 1]; 0 where nothing has weight."""
    ess_sequence: float
    """The same of the sequences' mean weights."""
    ratio_min: float
    ratio_max: float
    tokens_high: float
    tokens_low: float
    sequences_high: float
    """Of the mean ratio of a sequence."""
    sequences_low: float
    truncated_share: float
    """Tokens where a bound stands in the place of the ratio."""
    masked_share: float
    """Tokens of weight 0 because their ratio is out of bounds."""
    normalizer: float
    """What the weights were divided by; 1 where they were not."""


class WeightRows(NamedTuple):
    """Of each sequence of a chunk, [n]."""

    num_tokens: Tensor
    weight: Tensor
    """The mean."""
    weight_scatter: Tensor
    weight_min: Tensor
    weight_max: Tensor
    ratio: Tensor
    """The mean."""
    ratio_min: Tensor
    ratio_max: Tensor
    num_high: Tensor
    num_low: Tensor
    num_bounded: Tensor

    @classmethod
    def of(cls, rows: TokenRows, ratios: Tensor, weighed: TokenWeights, marks: tuple[float, float]) -> "WeightRows":
        """Sums up weights and ratios [n, T], both 0 outside of the mask."""
        low, high = marks
        weight = rows.mean(weighed.weights)
        return cls(
            num_tokens=rows.num_tokens,
            weight=weight,
            weight_scatter=rows.scatter(weighed.weights, weight),
            weight_min=rows.least(weighed.weights),
            weight_max=rows.peak(weighed.weights),
            ratio=rows.mean(ratios),
            ratio_min=rows.least(ratios),
            ratio_max=rows.peak(ratios),
            num_high=rows.count_above(ratios, high),
            num_low=rows.count_below(ratios, low),
            num_bounded=weighed.bounded.sum(-1),
        )


def summarize_weights(rows: WeightRows, weighting: Weighting, normalizer: float) -> WeightReport:
    """The report, of the sums over all sequences, [N] float64."""
    low, high = weighting.marks
    is_counted = rows.num_tokens > 0
    tokens = rows.num_tokens.sum()
    weights = Moments.merged(rows.num_tokens, rows.weight, rows.weight_scatter)

    def share(num: Tensor) -> float:
        return float(num.sum() / tokens.clamp(min=1))

    return WeightReport(
        tokens=Spread(
            mean=float(weights.mean),
            std=weights.std,
            min=float(masked_min(rows.weight_min, is_counted)),
            max=float(masked_max(rows.weight_max, is_counted)),
        ),
        sequences=Spread.of_sequences(rows.weight, is_counted),
        max_deviation=float(masked_max((rows.weight - 1).abs(), is_counted)),
        ess_token=weights.effective_share,
        ess_sequence=Moments.of_sequences(rows.weight, is_counted).effective_share,
        ratio_min=float(masked_min(rows.ratio_min, is_counted)),
        ratio_max=float(masked_max(rows.ratio_max, is_counted)),
        tokens_high=share(rows.num_high),
        tokens_low=share(rows.num_low),
        sequences_high=float(masked_share(rows.ratio > high, is_counted)),
        sequences_low=float(masked_share(rows.ratio < low, is_counted)),
        truncated_share=0.0 if weighting.drops else share(rows.num_bounded),
        masked_share=share(rows.num_bounded) if weighting.drops else 0.0,
        normalizer=normalizer,
    )
