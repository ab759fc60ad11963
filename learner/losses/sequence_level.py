"""Surrogates whose ratio is a sequence's.

Owns the formulas of GSPO and GMPO. Must not know weights, bonuses and aggregation.

Legend: N sequences, T response positions; A advantage; r = π/π_prox; sg stop-gradient.
"""

import math

from async_rl.config.objective import LossConfig
from correction.masked import zero_outside
from learner.losses.clipped import clip_ratio
from learner.losses.surrogate import Surrogate, SurrogateInputs

LOG_SEQUENCE_RATIO_BOUND = 10.0
"""Largest logarithm of a sequence's geometric mean ratio."""


def gspo(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """PPO's clip of s = exp(mean_t log r), one ratio for the sequence, with the gradient s·∇log π at each token.

    Group Sequence Policy Optimization, in its form for advantages per token (https://arxiv.org/abs/2507.18071).
    """
    log_ratios = tokens.row_mean(tokens.unbounded_log_ratios.detach())
    ratios = log_ratios.clamp(max=LOG_SEQUENCE_RATIO_BOUND).exp()
    # 1 in value; its gradient is that of log π.
    unit = 1 + (tokens.logprobs - tokens.logprobs.detach())
    return clip_ratio(tokens, ratios * unit, loss, math.inf)


def gmpo(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−mean_t(A)·exp(mean_t k), with k = min(log r, high) where A > 0 and max(log r, −low) where A < 0.

    Every token of a row has the row's loss, so that a mean over them is what the formula says. Flags are of the
    tokens outside of [−low, high], for A < 0 and A > 0. Geometric-Mean Policy Optimization
    (https://arxiv.org/abs/2507.20673).
    """
    log_ratios, is_positive = tokens.log_ratios, tokens.advantages > 0
    held = log_ratios.clamp(tokens.by_sign(-math.inf, -loss.clip_low), tokens.by_sign(loss.clip_high, math.inf))
    is_negative = tokens.advantages < 0
    ratios = tokens.row_mean(zero_outside(held, is_positive | is_negative)).exp()
    losses = -tokens.row_mean(tokens.advantages) * ratios
    is_outside = (log_ratios < -loss.clip_low) | (log_ratios > loss.clip_high)
    return Surrogate(
        losses=losses.expand(tokens.mask.shape),
        clipped_low=is_outside & is_negative,
        clipped_high=is_outside & is_positive,
    )
