"""A rejection criterion as it is written in a config: `LEVEL_STATISTIC:BOUND`.

Owns the grammar and its refusals. What a criterion does with log-ratios is the correction's business, which has the
same words for itself: a config loads without torch, and the correction without a config.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from async_rl.errors import ConfigError

PLACE = "correction.reject"


class CriterionLevel(StrEnum):
    """What is compared: each token's statistic, or one of its sequence."""

    token = "token"
    seq_sum = "seq_sum"
    seq_mean = "seq_mean"
    seq_max = "seq_max"


class Statistic(StrEnum):
    """Estimator of the distance of π_prox and μ at a token, with x = log π_prox/μ."""

    k1 = "k1"
    """−x; bounded by the ratio itself, eˣ, on both sides."""
    k2 = "k2"
    """x²/2"""
    k3 = "k3"
    """eˣ − 1 − x"""


@dataclass(frozen=True, kw_only=True)
class CriterionConfig:
    """What passes: for k1 low ≤ ratio ≤ high, else statistic ≤ high."""

    level: CriterionLevel
    statistic: Statistic
    low: float
    """Of the ratio; 0 for k2 and k3."""
    high: float


def parse_criterion(text: str) -> CriterionConfig:
    """`seq_mean_k3:0.01`, `token_k1:0.5_2.0`, or `token_k1:2` for `0.5_2`; a `ConfigError` for anything else."""
    name, colon, bound = text.partition(":")
    level, _, statistic = name.rpartition("_")
    if not colon or level not in list(CriterionLevel) or statistic not in list(Statistic):
        levels, statistics = ", ".join(CriterionLevel), ", ".join(Statistic)
        raise _refusal(text, f"write LEVEL_STATISTIC:BOUND with a level of {levels} and a statistic of {statistics}")
    low, high = _bounds(text, bound, is_ratio=statistic == Statistic.k1)
    return CriterionConfig(level=CriterionLevel(level), statistic=Statistic(statistic), low=low, high=high)


def _bounds(text: str, bound: str, *, is_ratio: bool) -> tuple[float, float]:
    try:
        numbers = [float(part) for part in bound.split("_")]
    except ValueError:
        numbers = []
    if is_ratio:
        if len(numbers) == 1 and numbers[0] >= 1 and math.isfinite(numbers[0]):
            return 1 / numbers[0], numbers[0]
        if len(numbers) == 2 and 0 < numbers[0] <= 1 <= numbers[1] and math.isfinite(numbers[1]):
            return numbers[0], numbers[1]
        raise _refusal(text, "bound the ratio by `low_high` around 1, as 0.5_2.0, or by one number ≥ 1 for both sides")
    if len(numbers) == 1 and numbers[0] > 0 and math.isfinite(numbers[0]):
        return 0.0, numbers[0]
    raise _refusal(text, "bound k2 and k3 by one number > 0")


def _refusal(text: str, remedy: str) -> ConfigError:
    return ConfigError(f"{PLACE} holds {text!r}, which is no criterion", place=PLACE, remedy=remedy)
