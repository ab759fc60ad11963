"""The samples of one prompt, as statistics of them.

Owns what a baseline is made of, and the rule for a row alone: with no other sample there is no baseline, so its
statistic is its own value, and its standard deviation 1. Rows that do not count are in no statistic, whatever
stands in them, and get 0. No loop over groups.

Legend: N rows, G groups.
"""

import torch
from torch import Tensor


class Groups:
    """Which rows belong together, and which of them count."""

    def __init__(self, labels: Tensor, counted: Tensor) -> None:
        """
        Args:
            labels: [N] integers, equal ones are one group.
            counted: [N] bool.
        """
        assert labels.shape == counted.shape and labels.ndim == 1, (labels.shape, counted.shape)
        names, self.index = torch.unique(labels, return_inverse=True)
        """[N] int64 in [0, G): the group of each row."""
        self.num_groups = len(names)
        """G."""
        self._counted = counted
        self.sizes = self._total(counted.double())
        """[N] float64: how many rows of each row's group count."""
        self.alone = counted & (self.sizes == 1)
        """[N] bool: the rows that count and have no other in their group that does."""

    def counting(self, values: Tensor) -> Tensor:
        """[N] float64: the values of the rows that count, 0 elsewhere."""
        return torch.where(self._counted, values.double(), 0.0)

    def smallest(self, values: Tensor) -> Tensor:
        """[N] → [N]: the smallest value in the group of each row, ∞ if none counts."""
        start = torch.full((self.num_groups,), torch.inf, dtype=torch.float64, device=values.device)
        kept = torch.where(self._counted, values.double(), torch.inf)
        return start.scatter_reduce(0, self.index, kept, "amin")[self.index]

    def centered(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """[N] float64: values less the mean of their group, weighted by [N] ≥ 1 where rows count; a row alone keeps
        its value.

        Equal values give exactly 0.
        """
        # Relative to the group's smallest value, equal values are exact zeros, and so is their mean.
        shifted = self.counting(values - self.smallest(values))
        if weights is None:
            means = self._total(shifted) / self.sizes.clamp(min=1)
        else:
            shares = self.counting(weights)
            means = self._total(shares * shifted) / self._total(shares).clamp(min=1)
        return torch.where(self.alone, values.double(), self.counting(shifted - means))

    def deviation(self, centered: Tensor) -> Tensor:
        """[N] float64: the (n − 1) standard deviation in the group of each row, of `centered` values; 1 for a row
        alone."""
        variance = self._total(centered.square()) / (self.sizes - 1).clamp(min=1)
        return torch.where(self.alone, 1.0, variance.sqrt())

    def two_largest(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """[N], [N] float64: the largest and the next value (the same if two are) in the group of each row, −∞ where
        the group has none."""
        kept = torch.where(self._counted, values.double(), -torch.inf)
        order = torch.argsort(kept, descending=True)
        order = order[torch.argsort(self.index[order], stable=True)]
        # One more −∞: what a last group of one row has in second place.
        ranked = torch.cat([kept[order], kept.new_full((1,), -torch.inf)])
        num_rows = torch.bincount(self.index, minlength=self.num_groups)
        first = num_rows.cumsum(0) - num_rows
        second = torch.where(num_rows > 1, ranked[first + 1], -torch.inf)
        return ranked[first][self.index], second[self.index]

    def _total(self, values: Tensor) -> Tensor:
        """[N] float64, 0 where rows do not count → [N]: the sum over the group of each row."""
        return values.new_zeros(self.num_groups).index_add_(0, self.index, values)[self.index]
