"""How numbers are spread: the summary of a quantity over tokens or over sequences.

Legend: N sequences.
"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from correction.masked import masked_max, masked_mean, masked_min


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of a quantity over what there is; all 0 where there is nothing."""

    mean: float = 0.0
    std: float = 0.0
    min: float = 0.0
    max: float = 0.0

    @classmethod
    def of_sequences(cls, values: Tensor, is_counted: Tensor) -> Self:
        """Of one value a sequence [N] float64 where `is_counted` [N] bool; the sample's std (n − 1)."""
        mean = masked_mean(values, is_counted)
        num = is_counted.sum()
        variance = masked_mean((values - mean).square(), is_counted) * num / (num - 1).clamp(min=1)
        return cls(
            mean=float(mean),
            std=float(variance.sqrt()),
            min=float(masked_min(values, is_counted)),
            max=float(masked_max(values, is_counted)),
        )


def std_of_sums(total: Tensor, square_total: Tensor, num: Tensor) -> float:
    """The population's std of `num` values with this sum and this sum of squares; 0 of nothing."""
    num = num.clamp(min=1)
    return float((square_total / num - (total / num).square()).clamp(min=0).sqrt())


def effective_share(total: Tensor, square_total: Tensor, num: Tensor) -> float:
    """(Σw)² / (n·Σw²): the share of n weights that equal weights would need for the same variance.

    Kong, 1992, the effective sample size: 1 for equal weights, 1/n for a single one that counts, 0 where none does.
    """
    if float(square_total) <= 0:
        return 0.0
    return float(total.square() / (num * square_total))
