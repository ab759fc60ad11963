"""Which tokens and sequences are too far off to train at all.

Owns criteria: a statistic of the log-ratio x = log π_prox/μ, per token or of its sequence, within bounds.
Rejection shrinks the mask; weights it leaves alone. What is said of it stands in `rejection_report`.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from correction.rows import TokenRows


class CriterionLevel(StrEnum):
    """What is compared with the bounds: each token's statistic, or one of its sequence."""

    token = "token"
    seq_sum = "seq_sum"
    seq_mean = "seq_mean"
    seq_max = "seq_max"


class Statistic(StrEnum):
    """Estimator of the distance of π_prox and μ at a token."""

    k1 = "k1"
    """−x: signed; its bounds are those of the ratio."""
    k2 = "k2"
    """x²/2"""
    k3 = "k3"
    """eˣ − 1 − x"""


def _k1(rows: TokenRows) -> Tensor:
    return -rows.log_ratios


def _k2(rows: TokenRows) -> Tensor:
    return rows.log_ratios.square().div_(2)


def _k3(rows: TokenRows) -> Tensor:
    return rows.excess


STATISTICS: dict[Statistic, Callable[[TokenRows], Tensor]] = {Statistic.k1: _k1, Statistic.k2: _k2, Statistic.k3: _k3}
"""Tokens → their statistic [n, T] of the clamped log-ratio; 0 for equal policies and outside of the mask."""


class Judgement(NamedTuple):
    """What a criterion found, and what it kept."""

    statistic: Tensor
    """[n, T] of a token criterion, else [n, 1]."""
    keep: Tensor
    """bool, of the statistic's shape."""


class Judge(Protocol):
    """Anything that can reject."""

    def judge(self, rows: TokenRows) -> Judgement:
        """Says what of a chunk may train."""


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """What trains: for k1 low ≤ ratio ≤ high, for k2 and k3 statistic ≤ high.

    For k1 the ratio is a token's own; for `seq_sum` and `seq_mean` the product and the geometric mean of its
    sequence's; `seq_max` asks that all ratios of the sequence be within the bounds.
    """

    level: CriterionLevel
    statistic: Statistic
    low: float = 0.0
    """Of the ratio π_prox/μ, k1 alone."""
    high: float
    verl_compatible: bool = False
    """The bounds of k1 hold for μ/π_prox instead."""

    def __post_init__(self) -> None:
        assert 0 < self.high < math.inf, self
        assert 0 < self.low <= 1 <= self.high if self.statistic is Statistic.k1 else self.low == 0, self

    @property
    def name(self) -> str:
        """How reports call it, as in `seq_mean_k3`."""
        return f"{self.level}_{self.statistic}"

    @property
    def limits(self) -> tuple[float, float]:
        """Between which the statistic itself, not the ratio, has to be."""
        if self.statistic is not Statistic.k1:
            return 0.0, self.high
        if self.verl_compatible:
            return math.log(self.low), math.log(self.high)
        return -math.log(self.high), -math.log(self.low)

    def judge(self, rows: TokenRows) -> Judgement:
        """Compares the statistic of a chunk's tokens or sequences with the limits."""
        tokens = STATISTICS[self.statistic](rows)
        match self.level:
            case CriterionLevel.token:
                return Judgement(tokens, self._holds(tokens))
            case CriterionLevel.seq_sum:
                total = tokens.sum(-1, keepdim=True)
                return Judgement(total, self._holds(total))
            case CriterionLevel.seq_mean:
                mean = tokens.sum(-1, keepdim=True) / rows.lengths.unsqueeze(-1)
                return Judgement(mean, self._holds(mean))
            case CriterionLevel.seq_max:
                lowest, highest = rows.least(tokens).unsqueeze(-1), rows.greatest(tokens).unsqueeze(-1)
                furthest = torch.where(highest >= -lowest, highest, lowest)
                return Judgement(furthest, self._holds(lowest) & self._holds(highest))

    def _holds(self, statistic: Tensor) -> Tensor:
        low, high = self.limits
        return (statistic <= high) & (statistic >= low) if self.statistic is Statistic.k1 else statistic <= high


@dataclass(frozen=True, kw_only=True)
class Veto:
    """Rejects a sequence with a token whose π_prox/μ is below `ratio`: one that the learner finds impossible.

    One-sided, unlike `seq_max`: a token that the learner likes better than the engine did is no catastrophe.
    """

    ratio: float

    def __post_init__(self) -> None:
        assert 0 < self.ratio <= 1, self

    def judge(self, rows: TokenRows) -> Judgement:
        """Looks for the least of each sequence's log-ratios, not clamped."""
        least = rows.least(rows.log_differences).unsqueeze(-1)
        return Judgement(least, least >= math.log(self.ratio))
