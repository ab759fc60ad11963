"""What criteria found and took away, in numbers.

Owns the summaries of each criterion's statistic and of what was rejected, by whom. Detached, summed in float64,
0 of nothing.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from correction.masked import masked_max, masked_min, masked_share
from correction.rejection import Criterion, CriterionLevel
from correction.rows import TokenRows
from correction.spread import Moments, Spread


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """What one criterion, or all together, took away."""

    token_share: float = 0.0
    """Of the tokens in the mask."""
    sequence_share: float = 0.0
    """Sequences that lost a token, of those that had one."""


@dataclass(frozen=True, kw_only=True)
class CriterionReport:
    """The statistic of one criterion. `high` and `low` are shares beyond its limits."""

    name: str
    rejected: Rejected
    tokens: Spread
    """Each token with its statistic, or with that of its sequence; std (population's) of the statistic cut off at
    the limits."""
    tokens_high: float
    tokens_low: float
    sequences: Spread
    """A statistic a sequence; of a token criterion the mean of its tokens."""
    sequences_high: float
    sequences_low: float
    max_deviation: float
    """Largest size of a sequence's statistic."""


class RejectionRows(NamedTuple):
    """Of each sequence of a chunk, [n]."""

    num_tokens: Tensor
    num_rejected: Tensor

    @classmethod
    def of(cls, rows: TokenRows, rejected: Tensor) -> "RejectionRows":
        """Counts the rejected tokens [n, T] bool."""
        return cls(num_tokens=rows.num_tokens, num_rejected=rejected.sum(-1))


class CriterionRows(NamedTuple):
    """Of each sequence of a chunk, [n]."""

    num_tokens: Tensor
    value: Tensor
    """The sequence's statistic; of a token criterion the mean of its tokens."""
    lowest: Tensor
    highest: Tensor
    cut: Tensor
    """The mean of the statistic cut off at the limits."""
    cut_scatter: Tensor
    num_high: Tensor
    num_low: Tensor

    @classmethod
    def of(cls, rows: TokenRows, criterion: Criterion, statistic: Tensor) -> "CriterionRows":
        """Sums the statistic: [n, T] of a token criterion, else [n, 1]."""
        low, high = criterion.limits
        num_tokens = rows.num_tokens
        cut = statistic.clamp(low, high)
        if criterion.level is not CriterionLevel.token:
            value, cut = statistic.squeeze(-1), cut.squeeze(-1)
            return cls(
                num_tokens=num_tokens,
                value=value,
                lowest=value,
                highest=value,
                cut=cut,
                cut_scatter=torch.zeros_like(cut),
                num_high=(value > high) * num_tokens,
                num_low=(value < low) * num_tokens,
            )
        # The statistic is 0 outside of the mask, and so within the limits.
        mean_cut = rows.mean(cut)
        return cls(
            num_tokens=num_tokens,
            value=rows.mean(statistic),
            lowest=rows.least(statistic),
            highest=rows.greatest(statistic),
            cut=mean_cut,
            cut_scatter=rows.scatter(cut, mean_cut),
            num_high=rows.count_above(statistic, high),
            num_low=rows.count_below(statistic, low),
        )


def summarize_rejection(rows: RejectionRows) -> Rejected:
    """Shares, of the counts of all sequences, [N] float64."""
    return Rejected(
        token_share=float(rows.num_rejected.sum() / rows.num_tokens.sum().clamp(min=1)),
        sequence_share=float(masked_share(rows.num_rejected > 0, rows.num_tokens > 0)),
    )


def summarize_criterion(criterion: Criterion, rows: CriterionRows, rejected: Rejected) -> CriterionReport:
    """The report, of the sums over all sequences, [N] float64."""
    low, high = criterion.limits
    is_counted = rows.num_tokens > 0
    num_tokens = rows.num_tokens.sum()
    sequences = Spread.of_sequences(rows.value, is_counted)
    return CriterionReport(
        name=criterion.name,
        rejected=rejected,
        tokens=Spread(
            mean=float((rows.value * rows.num_tokens).sum() / num_tokens.clamp(min=1)),
            std=Moments.merged(rows.num_tokens, rows.cut, rows.cut_scatter).std,
            min=float(masked_min(rows.lowest, is_counted)),
            max=float(masked_max(rows.highest, is_counted)),
        ),
        tokens_high=float(rows.num_high.sum() / num_tokens.clamp(min=1)),
        tokens_low=float(rows.num_low.sum() / num_tokens.clamp(min=1)),
        sequences=sequences,
        sequences_high=float(masked_share(rows.value > high, is_counted)),
        sequences_low=float(masked_share(rows.value < low, is_counted)),
        max_deviation=max(sequences.max, -sequences.min),
    )
