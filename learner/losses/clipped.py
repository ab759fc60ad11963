"""Surrogates that hold a token back once its policy has moved far enough.

Owns the formulas of PPO's clip and of its kin, per token. Must not know weights, bonuses and aggregation.

Legend: N sequences, T response positions; A advantage; r = π/π_prox; p = π, q = π_prox of the sampled token;
sg stop-gradient.
"""

import math

import torch
from torch import Tensor

from async_rl.config.objective import LossConfig
from learner.losses.surrogate import Surrogate, SurrogateInputs

KL_EPS = 1e-8
"""Added to 1 − p and 1 − q: near 1 float32 has no smaller difference to show."""


def ppo_clip(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """max(−A·r, −A·clip(r, 1 − low, 1 + high)), for A < 0 at most −A·dual.

    Which is −A·r with r held inside of [0, 1 + high] where A > 0, and of [1 − low, dual] where A < 0.

    PPO (https://arxiv.org/abs/1707.06347); separate bounds: DAPO (https://arxiv.org/abs/2503.14476); dual clip:
    https://arxiv.org/abs/1912.09729; around π_prox instead of μ: decoupled PPO (https://arxiv.org/abs/2110.00641).
    """
    return clip_ratio(tokens, tokens.ratios, loss, loss.clip_dual or math.inf)


def clip_ratio(tokens: SurrogateInputs, ratios: Tensor, loss: LossConfig, dual: float) -> Surrogate:
    """PPO's clip of any ratios [N, T], with `dual` for A < 0."""
    lower, upper = tokens.by_sign(0.0, 1 - loss.clip_low), tokens.by_sign(1 + loss.clip_high, dual)
    is_over, is_negative = ratios > upper, tokens.advantages < 0
    return Surrogate(
        losses=-tokens.advantages * ratios.clamp(lower, upper),
        clipped_low=(ratios < lower) & is_negative,
        clipped_high=is_over & (tokens.advantages > 0),
        clipped_dual=is_over & is_negative,
    )


def cispo(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−sg(clip(r, 1 − low, 1 + high))·A·log π: no token loses its gradient, it is only weighted less.

    CISPO of MiniMax-M1 (https://arxiv.org/abs/2506.13585).
    """
    ratios = tokens.ratios.detach()
    lower, upper = 1 - loss.clip_low, 1 + loss.clip_high
    return Surrogate(
        losses=-ratios.clamp(lower, upper) * tokens.advantages * tokens.logprobs,
        clipped_low=ratios < lower,
        clipped_high=ratios > upper,
    )


def sapo(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−A·(4/τ)·sigmoid(τ·(r − 1)): a smooth gate in the place of the clip, its slope 1 at r = 1.

    Soft Adaptive Policy Optimization (https://arxiv.org/abs/2511.20347).
    """
    tau = tokens.by_sign(loss.tau_positive, loss.tau_negative)
    gate = (tau * (tokens.ratios - 1)).sigmoid() * (4 / tau)
    return Surrogate(losses=-tokens.advantages * gate)


def dppo_tv(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−A·sg(min(r, cap))·log π, dropped once p − q is above `clip_high` (A > 0) or below −`clip_low` (else).

    Divergence PPO with the total variation of the sampled token against the rest
    (https://arxiv.org/abs/2602.04879).
    """
    with torch.no_grad():
        move = tokens.logprobs.exp() - tokens.proximal_logprobs.exp()
        dropped = torch.where(tokens.advantages > 0, move > loss.clip_high, move < -loss.clip_low)
    return _drop(tokens, dropped, loss)


def dppo_kl(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """The same, dropped once KL(q‖p) of the sampled token against the rest is above its bound and p moves off.

    Divergence PPO (https://arxiv.org/abs/2602.04879).
    """
    with torch.no_grad():
        log_p, log_q = tokens.logprobs, tokens.proximal_logprobs
        q, not_p, not_q = log_q.exp(), -log_p.expm1(), -log_q.expm1()
        kl = q * (log_q - log_p) + not_q * ((not_q + KL_EPS) / (not_p + KL_EPS)).log()
        grows, shrinks = (kl > loss.clip_high) & (log_p > log_q), (kl > loss.clip_low) & (log_p < log_q)
        dropped = torch.where(tokens.advantages > 0, grows, shrinks)
    return _drop(tokens, dropped, loss)


def _drop(tokens: SurrogateInputs, dropped: Tensor, loss: LossConfig) -> Surrogate:
    ratios, is_positive = tokens.ratios.detach(), tokens.advantages > 0
    scales = ratios.clamp(max=loss.ratio_cap).masked_fill(dropped, 0.0)
    return Surrogate(
        losses=-scales * tokens.advantages * tokens.logprobs,
        clipped_low=dropped & ~is_positive,
        clipped_high=dropped & is_positive,
        clipped_dual=(ratios > loss.ratio_cap) & ~dropped,
    )
