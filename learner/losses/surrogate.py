"""What a surrogate loss sees of the tokens, what it says of them, and what is known of it.

Owns the quantities that formulas are made of, each computed when a formula first asks for it. Nothing of what
stands outside of the mask can be seen through them. Must not know any formula.

Legend: N sequences (one a row), T response positions; r = π/π_prox.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import NamedTuple

import torch
from torch import Tensor

from async_rl.config.objective import LossConfig
from correction.masked import zero_outside
from correction.ratios import at_least_float32, clamp_log, log_difference, ratio


def _lazy(compute: Callable[["SurrogateInputs"], Tensor]) -> "cached_property[Tensor]":
    """Computed at its first use, with its gradient even if that use is for a flag and wants none."""

    @wraps(compute)
    def with_gradient(inputs: "SurrogateInputs") -> Tensor:
        with torch.set_grad_enabled(inputs.policy.requires_grad):
            return compute(inputs)

    return cached_property(with_gradient)


@dataclass(frozen=True, kw_only=True)
class SurrogateInputs:
    """The tokens of some whole rows. Everything is 0 outside of the mask, except ratios, which are 1 there."""

    policy: Tensor
    """[N, T] log π of the sampled tokens as the policy gives it, with gradient; anything outside of the mask."""
    proximal: Tensor
    """[N, T] log π_prox of the same tokens; anything outside of the mask."""
    advantages: Tensor
    """[N, T]"""
    mask: Tensor
    """[N, T] bool: tokens that train."""
    selected: Tensor | None
    """[N, T] bool: what the kind's `select` chose over the whole mini-batch; None of a kind without."""

    @_lazy
    def logprobs(self) -> Tensor:
        """[N, T] log π, with gradient."""
        return zero_outside(at_least_float32(self.policy), self.mask)

    @_lazy
    def proximal_logprobs(self) -> Tensor:
        """[N, T] log π_prox."""
        return zero_outside(at_least_float32(self.proximal), self.mask)

    @_lazy
    def unbounded_log_ratios(self) -> Tensor:
        """[N, T] log r with gradient, as large as it is: for what is not exponentiated, and keeps its pull far off."""
        return log_difference(self.policy, self.proximal, self.mask)

    @_lazy
    def log_ratios(self) -> Tensor:
        """[N, T] log r within ±`LOG_RATIO_BOUND`, with gradient where the bound does not bind."""
        return clamp_log(self.unbounded_log_ratios)

    @_lazy
    def ratios(self) -> Tensor:
        """[N, T] r, finite, with gradient where the bound of its logarithm does not bind."""
        return ratio(self.log_ratios)

    def row_mean(self, values: Tensor) -> Tensor:
        """[N, 1] mean over each row's tokens of values [N, T] that are 0 outside of the mask; 0 for an empty row."""
        return values.sum(1, keepdim=True) / self.mask.sum(1, keepdim=True).clamp(min=1)

    def by_sign(self, positive: float, otherwise: float) -> Tensor:
        """[N, T] the first number where A > 0, else the second."""
        like = self.unbounded_log_ratios.detach()
        return torch.where(self.advantages > 0, like.new_full((), positive), like.new_full((), otherwise))


class Surrogate(NamedTuple):
    """What a surrogate says of each token. Flags are detached; None: there is no such bound."""

    losses: Tensor
    """[N, T] with gradient; what stands outside of the mask is not read, but must be finite."""
    clipped_low: Tensor | None = None
    """[N, T] bool: held back for a ratio that is small already."""
    clipped_high: Tensor | None = None
    """[N, T] bool: held back for a ratio that is large already."""
    clipped_dual: Tensor | None = None
    """[N, T] bool: a further bound of the formula took hold (dual clip, cap of the ratio, choice by covariance)."""


SurrogateFunction = Callable[[SurrogateInputs, LossConfig], Surrogate]
"""Treats each row by itself: it may be given any rows of a mini-batch."""

SelectFunction = Callable[[Tensor, Tensor, Tensor, Tensor, LossConfig, torch.Generator], Tensor]
"""(log π, advantages, mask, log r, each [N, T] of a whole mini-batch, config, generator on the CPU) → chosen [N, T]."""


class SurrogateKind(NamedTuple):
    """A surrogate, and what the loss around it has to know of it."""

    function: SurrogateFunction
    aggregation: str = "token_mean"
    """What `loss.aggregation=auto` stands for."""
    pools_weights: bool = False
    """Every token of a row is weighted by the geometric mean of the row's weights."""
    select: SelectFunction | None = None
    """Chooses tokens over the whole mini-batch, before it is split."""
