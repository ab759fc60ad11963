"""What an advantage estimator is given, what it gives back, and what the learner must get ready for it.

Owns the shapes, and what all estimators ask of a batch: a trajectory's score, its length, whether it counts.
Must not know any formula.

Legend: N sequences (one a row), T response positions, K reward components. A row whose mask is all False was
rejected or is empty: it sets no baseline and has no advantage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from correction.batch_memory import empty_batch
from correction.masked import any_in_row, count, sum_in_row, zero_outside
from correction.ratios import at_least_float32
from correction.row_chunks import LARGE_CHUNK_ELEMENTS, row_chunks


class Need(StrEnum):
    """What an estimator reads beyond rewards and masks, and costs something to have."""

    VALUES = "values"
    """A critic's values: `values`."""
    GREEDY_BASELINE = "greedy_baseline"
    """The reward of a greedy rollout of each prompt: `baseline_rewards`."""
    COMPONENTS = "components"
    """Several rewards a trajectory: `component_rewards`."""
    SCORES = "scores"
    """The policy's log-probabilities at the batch's start: `proximal_logprobs`."""
    SUM_PI_SQUARED = "sum_pi_squared"
    """Σ_v π(v)² of the same pass: `sum_pi_squared`."""
    LOG_RHOS = "log_rhos"
    """log π_prox/μ: `log_rhos`."""


@dataclass(frozen=True, kw_only=True)
class AdvantageInputs:
    """A batch as the estimators see it. What stands outside of the mask is no data: it may be NaN.

    Floating tensors of tokens are of one dtype, or half precision where the others are float32.
    """

    mask: Tensor
    """[N, T] bool: tokens that train, after rejection; holes are an environment's turns."""
    token_rewards: Tensor
    """[N, T] reward of each token."""
    groups: Tensor
    """[N] int64: equal labels are samples of one prompt; any integers."""
    values: Tensor | None = None
    """[N, T] V of the state in which each token was sampled."""
    baseline_rewards: Tensor | None = None
    """[N] reward of the prompt's greedy rollout."""
    component_rewards: Tensor | None = None
    """[N, K] rewards by name, in the order of `reward_components`."""
    proximal_logprobs: Tensor | None = None
    """[N, T] log π_prox of the sampled tokens, nats."""
    sum_pi_squared: Tensor | None = None
    """[N, T] Σ_v π_prox(v)²."""
    weights: Tensor | None = None
    """[N, T] importance weights that multiply the loss."""
    log_rhos: Tensor | None = None
    """[N, T] log π_prox/μ, clamped, nats."""

    def __post_init__(self) -> None:
        shape = self.mask.shape
        assert self.mask.dtype == torch.bool and self.mask.ndim == 2, (self.mask.dtype, shape)
        assert self.groups.shape == shape[:1] and not self.groups.is_floating_point(), self.groups
        tokens = (
            self.token_rewards, self.values, self.proximal_logprobs, self.sum_pi_squared, self.weights, self.log_rhos
        )  # fmt: skip
        assert all(t is None or t.shape == shape for t in tokens), [None if t is None else t.shape for t in tokens]
        assert self.baseline_rewards is None or self.baseline_rewards.shape == shape[:1], self.baseline_rewards
        assert self.component_rewards is None or self.component_rewards.shape[:-1] == shape[:1], self.component_rewards

    @property
    def dtype(self) -> torch.dtype:
        """Of the results: that of the rewards, float32 at least."""
        return at_least_float32(self.token_rewards[:0]).dtype

    @cached_property
    def counted(self) -> Tensor:
        """[N] bool: rows with a token that trains."""
        return any_in_row(self.mask)

    @cached_property
    def lengths(self) -> Tensor:
        """[N] float64: how many tokens of each row train."""
        return count(self.mask, -1).double()

    @cached_property
    def scores(self) -> Tensor:
        """[N] float64: each trajectory's reward, the sum over its tokens."""
        return sum_in_row(at_least_float32(self.token_rewards), self.mask).double()

    def empty(self) -> Tensor:
        """[N, T] for a result, not filled."""
        return empty_batch(self.mask, self.dtype)

    def spread(self, advantages: Tensor) -> Tensor:
        """[N] → [N, T]: every token has its trajectory's advantage, 0 outside of the mask."""
        spread, row_values = self.empty(), advantages.to(self.dtype)[:, None].expand(self.mask.shape)
        for rows in row_chunks(self.mask, LARGE_CHUNK_ELEMENTS):
            zero_outside(row_values[rows], self.mask[rows], out=spread[rows])
        return spread


class Advantages(NamedTuple):
    """What an estimator says of each token."""

    advantages: Tensor
    """[N, T], 0 outside of the mask."""
    returns: Tensor | None
    """[N, T] what a critic should have said, 0 outside of the mask; None of an estimator without credit per token."""


EstimatorFunction = Callable[[AdvantageInputs, AdvantageConfig], Advantages]
