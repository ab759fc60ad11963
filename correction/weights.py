"""Importance weights of the tokens: what the loss makes of π_prox/μ.

The behaviour policy μ (the engine, at the version that sampled the token) is not the policy at the
start of the batch, π_prox. The weight of a token corrects for that; it multiplies the token's loss and
carries no gradient. Must not know where log-probabilities come from.

A weighting is a function in `WEIGHTINGS`; the config names it.

Legend: T tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import ratio


class TokenWeights(NamedTuple):
    """What a weighting says of each token."""

    weights: Tensor
    """[T] ≥ 0, 0 outside of the mask, detached."""
    truncated: Tensor
    """[T] bool: the weight is smaller than the ratio because a bound took hold."""


Weighting = Callable[[Tensor, Tensor, float], TokenWeights]
"""(log π_prox/μ [T] clamped, mask [T] bool, cap) → weights."""


def unweighted(log_ratios: Tensor, mask: Tensor, cap: float) -> TokenWeights:
    """Every token counts as it is: right on-policy, biased off it."""
    del cap
    weights = torch.ones_like(log_ratios.detach())
    return TokenWeights(zero_outside(weights, mask), torch.zeros_like(mask))


def truncated(log_ratios: Tensor, mask: Tensor, cap: float) -> TokenWeights:
    """min(π_prox/μ, cap) per token: bounded variance for a bias where the bound binds.

    Truncated Importance Sampling (Ionides, 2008, https://doi.org/10.1198/106186008X320456); as the
    ρ̄ of IMPALA (https://arxiv.org/abs/1802.01561) for the mismatch of engine and learner.
    """
    assert cap > 0, cap
    ratios = ratio(log_ratios.detach())
    return TokenWeights(zero_outside(ratios.clamp(max=cap), mask), (ratios > cap) & mask)


WEIGHTINGS: dict[str, Weighting] = {
    "off": unweighted,
    "truncated": truncated,
}
