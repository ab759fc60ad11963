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
from correction.spread import Spread, effective_share, std_of_sums
from correction.weights import TokenWeights


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
    """Of each sequence of a chunk, [n]; sums are over its tokens."""

    num_tokens: Tensor
    deviation: Tensor
    """Of w − 1, which keeps what is near 1 exact."""
    deviation_square: Tensor
    weight_min: Tensor
    weight_max: Tensor
    ratio: Tensor
    ratio_min: Tensor
    ratio_max: Tensor
    num_high: Tensor
    num_low: Tensor
    num_truncated: Tensor
    num_masked: Tensor

    @classmethod
    def of(cls, rows: TokenRows, ratios: Tensor, weighed: TokenWeights, marks: tuple[float, float]) -> "WeightRows":
        """Sums weights and ratios [n, T]; outside of the mask the weights are 0, the ratios finite."""
        low, high = marks
        deviation = weighed.weights - rows.indicator
        ratios = ratios * rows.indicator
        return cls(
            num_tokens=rows.indicator.sum(-1),
            deviation=deviation.sum(-1),
            deviation_square=deviation.square().sum(-1),
            weight_min=masked_min(weighed.weights, rows.mask, -1),
            weight_max=masked_max(weighed.weights, rows.mask, -1),
            ratio=ratios.sum(-1),
            ratio_min=masked_min(ratios, rows.mask, -1),
            ratio_max=masked_max(ratios, rows.mask, -1),
            num_high=((ratios > high) & rows.mask).sum(-1),
            num_low=((ratios < low) & rows.mask).sum(-1),
            num_truncated=weighed.truncated.sum(-1),
            num_masked=weighed.masked.sum(-1),
        )


def summarize_weights(rows: WeightRows, marks: tuple[float, float], normalizer: float) -> WeightReport:
    """The report, of the sums over all sequences, [N] float64."""
    low, high = marks
    is_counted = rows.num_tokens > 0
    lengths = rows.num_tokens.clamp(min=1)
    tokens = rows.num_tokens.sum()
    deviation, square = rows.deviation.sum(), rows.deviation_square.sum()
    mean_weight, mean_ratio = 1 + rows.deviation / lengths, rows.ratio / lengths
    sequences = Spread.of_sequences(mean_weight, is_counted)
    counted = mean_weight * is_counted

    def share(num: Tensor) -> float:
        return float(num.sum() / tokens.clamp(min=1))

    return WeightReport(
        tokens=Spread(
            mean=float((tokens + deviation) / tokens.clamp(min=1)),
            std=std_of_sums(deviation, square, tokens),
            min=float(masked_min(rows.weight_min, is_counted)),
            max=float(masked_max(rows.weight_max, is_counted)),
        ),
        sequences=sequences,
        max_deviation=float(masked_max((mean_weight - 1).abs(), is_counted)),
        ess_token=effective_share(tokens + deviation, tokens + 2 * deviation + square, tokens),
        ess_sequence=effective_share(counted.sum(), counted.square().sum(), is_counted.sum()),
        ratio_min=float(masked_min(rows.ratio_min, is_counted)),
        ratio_max=float(masked_max(rows.ratio_max, is_counted)),
        tokens_high=share(rows.num_high),
        tokens_low=share(rows.num_low),
        sequences_high=float(masked_share(mean_ratio > high, is_counted)),
        sequences_low=float(masked_share(mean_ratio < low, is_counted)),
        truncated_share=share(rows.num_truncated),
        masked_share=share(rows.num_masked),
        normalizer=normalizer,
    )
