"""How numbers are spread: moments that merge, and the summary of a quantity over tokens or sequences.

Means and scatters of each sequence, merged in float64, lose nothing to cancellation: a sum of squares less the square
of a sum would, where weights are nearly equal.

Legend: N sequences.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

from torch import Tensor

from correction.masked import masked_max, masked_mean, masked_min


class Moments(NamedTuple):
    """Of a quantity over what there is; 0 of nothing."""

    mean: Tensor
    """scalar, float64"""
    variance: Tensor
    """The population's."""

    @classmethod
    def merged(cls, num: Tensor, mean: Tensor, scatter: Tensor) -> Self:
        """Of all tokens, from each sequence's number, mean and sum of squared deviations from it, [N] float64.

        Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, 1983.
        """
        total = num.sum().clamp(min=1)
        overall = (num * mean).sum() / total
        return cls(overall, (scatter.sum() + (num * (mean - overall).square()).sum()) / total)

    @classmethod
    def of_sequences(cls, values: Tensor, is_counted: Tensor) -> Self:
        """Of one value a sequence, [N] float64, where `is_counted` [N] bool."""
        mean = masked_mean(values, is_counted)
        return cls(mean, masked_mean((values - mean).square(), is_counted))

    def sample_variance(self, num: Tensor) -> Tensor:
        """With n − 1, where the moments are of `num` values; 0 of a single one."""
        return self.variance * num / (num - 1).clamp(min=1)

    @property
    def std(self) -> float:
        """The population's."""
        return float(self.variance.sqrt())

    @property
    def effective_share(self) -> float:
        """(Σw)² / (n·Σw²): the share of n weights that equal weights would need for the same variance.

        Kong, 1992, the effective sample size: 1 for equal weights, 1/n for a single one that counts, 0 where none does.
        """
        square = self.mean.square()
        return float(square / (square + self.variance)) if self.mean > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of a quantity over what there is; all 0 where there is nothing."""

    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of_sequences(cls, values: Tensor, is_counted: Tensor) -> Self:
        """Of one value a sequence [N] float64 where `is_counted` [N] bool; the sample's std (n − 1)."""
        moments = Moments.of_sequences(values, is_counted)
        return cls(
            mean=float(moments.mean),
            std=float(moments.sample_variance(is_counted.sum()).sqrt()),
            min=float(masked_min(values, is_counted)),
            max=float(masked_max(values, is_counted)),
        )
