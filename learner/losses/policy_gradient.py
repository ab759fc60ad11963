"""Surrogates that weigh the gradient of log π, and clip nothing.

Owns the formulas of REINFORCE and of its kin, per token. Must not know weights, bonuses and aggregation.

Legend: N sequences, T response positions; A advantage; r = π/π_prox; sg stop-gradient.
"""

import torch

from async_rl.config.objective import LossConfig
from learner.losses.surrogate import Surrogate, SurrogateInputs


def reinforce(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−A·log π.

    Williams, 1992, https://doi.org/10.1007/BF00992696; with its own advantages it is GPG's loss
    (https://arxiv.org/abs/2504.02546).
    """
    del loss
    return Surrogate(losses=-tokens.advantages * tokens.logprobs)


def aipo(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−sg(min(r, cap))·A·log π: truncated importance sampling, clipped on one side alone.

    Asynchronous Importance-weighted Policy Optimization of LlamaRL (https://arxiv.org/abs/2505.24034), whose r is
    π/μ: here with `correction.proximal=rollout`, or for the part of π/μ that no weight has taken.
    """
    ratios = tokens.ratios.detach()
    return Surrogate(
        losses=-ratios.clamp(max=loss.ratio_cap) * tokens.advantages * tokens.logprobs,
        clipped_high=ratios > loss.ratio_cap,
    )


def topr(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−sg(ρ)·A·log π with ρ = 1 where A > 0, elsewhere the ratio of the whole sequence truncated into [0, 1].

    Good samples pull however unlikely they have become; bad ones push only while they are still likely, so that
    nothing is driven to probability 0 for ever. Tapered Off-Policy REINFORCE (https://arxiv.org/abs/2503.14286).
    """
    del loss
    log_ratios = tokens.unbounded_log_ratios.detach().sum(1, keepdim=True)
    is_negative = tokens.advantages < 0
    scales = torch.where(is_negative, log_ratios.clamp(max=0).exp(), tokens.advantages.new_ones(()))
    return Surrogate(
        losses=-scales * tokens.advantages * tokens.logprobs,
        clipped_high=is_negative & (log_ratios > 0),
    )


def dro(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−(A·log π − β/2·(log r)²): a quadratic pull to π_prox that does not fade with distance.

    Direct Reward Optimisation (https://arxiv.org/abs/2405.19107), with the advantage for reward minus value.
    """
    pull = 0.5 * loss.dro_beta * tokens.unbounded_log_ratios.square()
    return Surrogate(losses=pull - tokens.advantages * tokens.logprobs)
