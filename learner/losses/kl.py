"""KL(π‖reference) of a token: estimates from the token that was sampled, in the loss or in the reward.

Owns the estimators, and what they subtract from rewards. The sum over the vocabulary comes with a
backend's scores, the coefficient from `learner.kl_controller`.

All but k2 have a gradient whose mean is not that of the KL, whatever their own mean is: k1's is 0, k3's is that of
KL(reference‖π), and beyond its bound it has none. Straight through, each keeps its value and takes k2's gradient,
whose mean is the KL's and which grows with the distance.

Legend: N sequences, T response positions; d = log π/reference.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import at_least_float32, clamp_log, excess, log_difference

K3_BOUND = 10.0
"""Largest k3 of one token."""

KLFunction = Callable[[Tensor], Tensor]
"""d of any shape, as it is (`log_difference`), → KL of each, nats."""


def k1(log_ratios: Tensor) -> Tensor:
    """d: unbiased under π, of either sign."""
    return log_ratios


def absolute(log_ratios: Tensor) -> Tensor:
    """|d|."""
    return log_ratios.abs()


def k2(log_ratios: Tensor) -> Tensor:
    """d²/2."""
    return 0.5 * log_ratios.square()


def k3(log_ratios: Tensor) -> Tensor:
    """e^−d + d − 1, at most `K3_BOUND`: unbiased under π below that, and never negative.

    Schulman, Approximating KL Divergence, http://joschu.net/blog/kl-approx.html. A token that the reference holds
    e^2.6 times likelier is at the bound already, and without a gradient: `straight_through` keeps its pull.
    """
    return excess(clamp_log(-log_ratios)).clamp(max=K3_BOUND)


KL_ESTIMATORS: dict[str, KLFunction] = {"k1": k1, "abs": absolute, "k2": k2, "k3": k3}
"""Keys are the words of `async_rl.config.objective.KLEstimator`, but for `full`."""


def straight_through(function: KLFunction) -> KLFunction:
    """The same value with the gradient of k2, which is d·∇log π."""

    def estimate(log_ratios: Tensor) -> Tensor:
        pull = k2(log_ratios)
        return function(log_ratios.detach()) + (pull - pull.detach())

    return estimate


class PenalisedRewards(NamedTuple):
    """Rewards from which the KL has been taken."""

    token_rewards: Tensor
    """[N, T], 0 outside of the mask."""
    kl_mean: Tensor
    """Scalar float64: over each sequence's tokens, then over the sequences that have any; what steers a controller."""


def kl_in_reward(
    token_rewards: Tensor, logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, *, estimator: str, coef: float
) -> PenalisedRewards:
    """Subtracts coef·KL from the reward of each token.

    Args:
        token_rewards: [N, T]; anything outside of the mask, as everywhere here.
        logprobs: [N, T] of the policy at the batch's start.
        reference_logprobs: [N, T].
        mask: [N, T] bool.
        estimator: key of `KL_ESTIMATORS`.
        coef: ≥ 0.
    """
    with torch.no_grad():
        kl = KL_ESTIMATORS[estimator](log_difference(logprobs, reference_logprobs, mask))
        rewards = zero_outside(at_least_float32(token_rewards), mask) - coef * kl
        lengths = mask.sum(1)
        kl_mean = (kl.sum(1).double() / lengths.clamp(min=1)).sum() / (lengths > 0).sum().clamp(min=1)
    return PenalisedRewards(rewards, kl_mean)
