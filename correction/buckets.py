"""The numbers of a correction by the age of tokens, or by where in the response they stand.

Owns the buckets and one pass over the batch that fills them. An average over a batch hides that it is the old
tokens, or the late ones, that are off.

Legend: N sequences, T tokens, B buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from correction.correction import Corrected
from correction.ratios import excess
from correction.rows import token_chunks
from correction.spread import Moments

STALENESS_EDGES = (0, 1, 2, 3, 5, 9, 17)
"""Where buckets of staleness begin, in versions; the last has no end."""

POSITION_EDGES = (0, 64, 256, 1024, 4096, 16384)
"""Where buckets of the position in the response begin, in tokens."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Of the tokens that fall into it; all 0 where none do."""

    low: int
    high: int | None
    """The largest key; None: no end."""
    token_share: float
    """Of the tokens in the mask."""
    k1: float
    """The mean of −log π_prox/μ, clamped."""
    k3: float
    weight: float
    """The mean weight, as the loss has it."""
    ess: float
    """Effective sample size of the weights, as a share of the bucket."""
    bounded_share: float
    """Truncated, or masked where the weighting drops."""
    rejected_share: float

    @property
    def label(self) -> str:
        """As in `3-4`, `0`, `17+`."""
        if self.high is None:
            return f"{self.low}+"
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"


@torch.no_grad()
def by_bucket(corrected: Corrected, keys: Tensor, edges: Sequence[int]) -> tuple[Bucket, ...]:
    """Sorts the tokens of the mask that went in by an integer key.

    Args:
        corrected: a batch [N, T].
        keys: integers, broadcast to [N, T]: the staleness of each token, or the positions [T].
        edges: where the B buckets begin, rising from the smallest key there is.
    """
    assert all(a < b for a, b in pairwise(edges)), edges
    num_buckets = len(edges)
    starts = torch.tensor(edges[1:], device=keys.device, dtype=keys.dtype)
    numbers = torch.bucketize(keys, starts, right=True).expand_as(corrected.given)
    sums = torch.zeros(len(_COLUMNS), num_buckets + 1, dtype=torch.float64, device=keys.device)
    for rows in token_chunks(corrected.given):
        # Outside of the mask stands a bucket of its own, that nobody reads.
        bucket = numbers[rows].masked_fill(~corrected.given[rows], num_buckets).flatten()
        for column, values in zip(sums, _columns(corrected, rows), strict=True):
            column += torch.bincount(bucket, values.flatten().double(), minlength=num_buckets + 1)
    return _summarize(sums[:, :num_buckets], edges)


_COLUMNS = ("tokens", "k1", "k3", "weight", "weight_square", "bounded", "rejected")


def _columns(corrected: Corrected, rows: slice) -> tuple[Tensor, ...]:
    log_ratios, weights = corrected.log_ratios[rows], corrected.weights[rows]
    given = corrected.given[rows]
    return (
        given,
        -log_ratios,
        excess(log_ratios),
        weights,
        weights.square(),
        corrected.bounded[rows],
        given & ~corrected.mask[rows],
    )


def _summarize(sums: Tensor, edges: Sequence[int]) -> tuple[Bucket, ...]:
    tokens, k1, k3, weight, weight_square, bounded, rejected = sums
    per_token = tokens.clamp(min=1)
    return tuple(
        Bucket(
            low=low,
            high=high,
            token_share=float(tokens[i] / tokens.sum().clamp(min=1)),
            k1=float(k1[i] / per_token[i]),
            k3=float(k3[i] / per_token[i]),
            weight=float(weight[i] / per_token[i]),
            ess=_moments(weight[i], weight_square[i], per_token[i]).effective_share,
            bounded_share=float(bounded[i] / per_token[i]),
            rejected_share=float(rejected[i] / per_token[i]),
        )
        for i, (low, high) in enumerate(zip(edges, [*(edge - 1 for edge in edges[1:]), None], strict=True))
    )


def _moments(total: Tensor, square_total: Tensor, num: Tensor) -> Moments:
    mean = total / num
    return Moments(mean, (square_total / num - mean.square()).clamp(min=0))
