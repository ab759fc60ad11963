"""What criteria found and took away, in numbers.

Owns the summaries of each criterion's statistic and of what was rejected, by whom. Detached, summed in float64,
0 of nothing.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

from collections.abc import Sequence
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
    """Of each sequence, of a chunk [n] or of all [N]."""

    num_tokens: Tensor
    num_kept: Tensor

    @classmethod
    def of(cls, rows: TokenRows, kept: Tensor) -> "RejectionRows":
        """Counts what is left of the mask [n, T] bool."""
        return cls(num_tokens=rows.num_tokens, num_kept=kept.sum(-1))


class StatisticRows(NamedTuple):
    """Of each sequence, of a chunk [n] or of all [N]: what is summed of a statistic over its tokens."""

    num_tokens: Tensor
    value: Tensor
    """The sequence's own, or the mean of its tokens."""
    lowest: Tensor
    highest: Tensor
    cut: Tensor
    """The mean of the statistic cut off at the limits."""
    cut_scatter: Tensor
    num_high: Tensor
    num_low: Tensor

    @classmethod
    def of_tokens(cls, rows: TokenRows, criterion: Criterion, statistic: Tensor) -> "StatisticRows":
        """Sums up a statistic of tokens [n, T]."""
        low, high = criterion.limits
        # The statistic is 0 outside of the mask, and so within the limits.
        cut = statistic.clamp(low, high)
        mean_cut = rows.mean(cut)
        return cls(
            num_tokens=rows.num_tokens,
            value=rows.mean(statistic),
            lowest=rows.least(statistic),
            highest=rows.greatest(statistic),
            cut=mean_cut,
            cut_scatter=rows.scatter(cut, mean_cut),
            num_high=rows.count_above(statistic, high),
            num_low=rows.count_below(statistic, low),
        )

    @classmethod
    def of_sequences(cls, criterion: Criterion, num_tokens: Tensor, value: Tensor) -> "StatisticRows":
        """A statistic [N] that all tokens of a sequence have."""
        low, high = criterion.limits
        return cls(
            num_tokens=num_tokens,
            value=value,
            lowest=value,
            highest=value,
            cut=value.clamp(low, high),
            cut_scatter=torch.zeros_like(value),
            num_high=(value > high) * num_tokens,
            num_low=(value < low) * num_tokens,
        )


def sum_statistic(rows: TokenRows, criterion: Criterion, statistic: Tensor) -> tuple[Tensor, ...]:
    """What `summarize_criterion` needs of a chunk's statistic: [n, T] of a token criterion, else [n, 1]."""
    if criterion.level is CriterionLevel.token:
        return StatisticRows.of_tokens(rows, criterion, statistic)
    return rows.num_tokens, statistic.squeeze(-1)


def summarize_rejection(rows: RejectionRows) -> Rejected:
    """Shares, over all sequences."""
    num_rejected = rows.num_tokens - rows.num_kept
    return Rejected(
        token_share=float(num_rejected.sum() / rows.num_tokens.sum().clamp(min=1)),
        sequence_share=float(masked_share(num_rejected > 0, rows.num_tokens > 0)),
    )


def summarize_criterion(criterion: Criterion, columns: Sequence[Tensor], rejected: Rejected) -> CriterionReport:
    """The report, of what `sum_statistic` gave for all sequences."""
    low, high = criterion.limits
    is_token = criterion.level is CriterionLevel.token
    rows = StatisticRows(*columns) if is_token else StatisticRows.of_sequences(criterion, *columns)
    is_counted = rows.num_tokens > 0
    num_tokens = rows.num_tokens.sum().clamp(min=1)
    sequences = Spread.of_sequences(rows.value, is_counted)
    return CriterionReport(
        name=criterion.name,
        rejected=rejected,
        tokens=Spread(
            mean=float((rows.value * rows.num_tokens).sum() / num_tokens),
            std=Moments.merged(rows.num_tokens, rows.cut, rows.cut_scatter).std,
            min=float(masked_min(rows.lowest, is_counted)),
            max=float(masked_max(rows.highest, is_counted)),
        ),
        tokens_high=float(rows.num_high.sum() / num_tokens),
        tokens_low=float(rows.num_low.sum() / num_tokens),
        sequences=sequences,
        sequences_high=float(masked_share(rows.value > high, is_counted)),
        sequences_low=float(masked_share(rows.value < low, is_counted)),
        max_deviation=max(sequences.max, -sequences.min),
    )
