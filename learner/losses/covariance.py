"""Surrogates that treat the tokens apart whose log-probability covaries most with their advantage.

Those are the tokens that cost the most entropy. Owns the covariance, the choice over a whole mini-batch and the two
formulas. Must not know weights, bonuses and aggregation.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (https://arxiv.org/abs/2505.22617).

Legend: N sequences, T response positions, n trained tokens; A advantage; r = π/π_prox.
"""

import math

import torch
from torch import Tensor

from async_rl.config.objective import LossConfig
from correction.ratios import at_least_float32
from learner.losses.clipped import clip_ratio
from learner.losses.surrogate import Surrogate, SurrogateInputs


def clip_cov(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """PPO's clip without the dual one; the chosen tokens have no loss."""
    assert tokens.selected is not None
    clipped = clip_ratio(tokens, tokens.ratios, loss, math.inf)
    return clipped._replace(losses=clipped.losses.masked_fill(tokens.selected, 0.0), clipped_dual=tokens.selected)


def kl_cov(tokens: SurrogateInputs, loss: LossConfig) -> Surrogate:
    """−A·r, and at the chosen tokens coef·|log r| more, which does not fade with distance."""
    assert tokens.selected is not None
    pull = tokens.unbounded_log_ratios.abs().masked_fill(~tokens.selected, 0.0)
    return Surrogate(losses=loss.kl_cov_coef * pull - tokens.advantages * tokens.ratios)


def select_clip_cov(
    logprobs: Tensor, advantages: Tensor, mask: Tensor, log_ratios: Tensor, loss: LossConfig, generator: torch.Generator
) -> Tensor:
    """Chooses at random among the tokens of a large covariance that PPO does not clip already.

    Args:
        logprobs: [N, T] log π; anything outside of the mask, as everywhere here.
        advantages: [N, T].
        mask: [N, T] bool of the whole mini-batch.
        log_ratios: [N, T] log r.
        loss: `cov_share` of the tokens, between `clip_cov_low` and `clip_cov_high`.
        generator: on the CPU; the choice is a function of its state.

    Returns:
        [N, T] bool.
    """
    covariance = _covariance(logprobs, advantages, mask)
    ratios, a = at_least_float32(log_ratios.detach()[mask]).exp(), advantages[mask]
    is_clipped = ((a > 0) & (ratios > 1 + loss.clip_high)) | ((a < 0) & (ratios < 1 - loss.clip_low))
    is_candidate = (covariance > loss.clip_cov_low) & (covariance < loss.clip_cov_high) & ~is_clipped
    candidates = is_candidate.nonzero().squeeze(1)
    order = torch.randperm(len(candidates), generator=generator).to(candidates.device)
    return _scatter(candidates[order[: _count(covariance, loss)]], mask)


def select_kl_cov(
    logprobs: Tensor, advantages: Tensor, mask: Tensor, log_ratios: Tensor, loss: LossConfig, generator: torch.Generator
) -> Tensor:
    """Chooses the tokens of the largest covariance; arguments as for `select_clip_cov`."""
    del log_ratios, generator
    covariance = _covariance(logprobs, advantages, mask)
    return _scatter(covariance.topk(_count(covariance, loss)).indices, mask)


def _covariance(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """[n] what each trained token adds to the covariance of advantage and log-probability."""
    a, logp = at_least_float32(advantages[mask]), at_least_float32(logprobs.detach()[mask])
    return (a - a.mean()) * (logp - logp.mean())


def _count(covariance: Tensor, loss: LossConfig) -> int:
    """How many of n tokens are chosen: at least one, if any share of any tokens is."""
    n = len(covariance)
    return max(1, int(loss.cov_share * n)) if n and loss.cov_share > 0 else 0


def _scatter(chosen: Tensor, mask: Tensor) -> Tensor:
    """Indices among the trained tokens → [N, T] bool."""
    among = torch.zeros(int(mask.sum()), dtype=torch.bool, device=mask.device)
    among[chosen] = True
    return torch.zeros_like(mask).masked_scatter(mask, among)
