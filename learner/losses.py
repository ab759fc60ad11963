"""The one policy loss, assembled from parts: surrogate × importance weight, entropy bonus, reference KL.

Owns the formulas per token and how tokens add up. Pure: sees the tensors of one micro-batch, never a
model or a batch. A part is a small function in a table:

    loss = Σ_t c_t · (w_t · surrogate_t − entropy_coef · H_t + kl_coef · kl_t)

The coefficients c come from an aggregation over the whole mini-batch, so that micro-batch losses just
add up and no split of a mini-batch changes loss or gradient.

Legend: T tokens, N sequences; A advantage; r = π/π_prox.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from async_rl.config.schema import ObjectiveConfig
from correction.masked import zero_outside
from correction.ratios import at_least_float32, excess, log_ratio, ratio


class Surrogate(NamedTuple):
    """What a surrogate says of each token; the flags are detached and False outside of the mask."""

    losses: Tensor
    """[T]"""
    ratios: Tensor
    """[T] r, detached."""
    clipped_low: Tensor
    """[T] bool: A < 0 and the lower clip holds the token back."""
    clipped_high: Tensor
    """[T] bool: A > 0 and the upper clip holds the token back."""
    clipped_dual: Tensor
    """[T] bool: A < 0 and the dual clip bounds the loss."""


@dataclass(frozen=True, kw_only=True)
class PolicyTokens:
    """Everything of a micro-batch but the policy's own scores; all [T], no gradient."""

    mask: Tensor
    """bool: tokens that train."""
    coefficients: Tensor
    """float64: what one unit of a token's loss adds to the loss; 0 outside of the mask."""
    advantages: Tensor
    weights: Tensor
    """Importance weights π_prox/μ."""
    proximal_logprobs: Tensor
    reference_logprobs: Tensor | None = None
    """None without a reference KL."""

    def to(self, device: torch.device) -> "PolicyTokens":
        """The same on the device where the policy's scores are."""
        reference = self.reference_logprobs
        return PolicyTokens(
            mask=self.mask.to(device),
            coefficients=self.coefficients.to(device),
            advantages=self.advantages.to(device),
            weights=self.weights.to(device),
            proximal_logprobs=self.proximal_logprobs.to(device),
            reference_logprobs=None if reference is None else reference.to(device),
        )


class PolicyLoss(NamedTuple):
    """The loss of one micro-batch and what there is to say of its tokens (detached)."""

    loss: Tensor
    """Scalar float64 with gradient."""
    surrogate: Surrogate
    entropy: Tensor
    """[T], 0 outside of the mask."""
    reference_kl: Tensor
    """[T], 0 outside of the mask or without a reference."""

    def detach(self) -> "PolicyLoss":
        """Without the graph, which holds every activation of the micro-batch."""
        surrogate = self.surrogate._replace(losses=self.surrogate.losses.detach())
        return self._replace(loss=self.loss.detach(), surrogate=surrogate)


# --- surrogates ---------------------------------------------------------------------------------

SurrogateFunction = Callable[[Tensor, Tensor, Tensor, ObjectiveConfig], Surrogate]
"""(log r [T], advantages [T], mask [T] bool, objective) → losses per token."""


def ppo_clip(log_ratios: Tensor, advantages: Tensor, mask: Tensor, objective: ObjectiveConfig) -> Surrogate:
    """max(−A·r, −A·clip(r, 1 − low, 1 + high)), for A < 0 at most −A·dual.

    PPO (https://arxiv.org/abs/1707.06347); separate bounds: DAPO (https://arxiv.org/abs/2503.14476);
    dual clip: https://arxiv.org/abs/1912.09729; around π_prox instead of μ: decoupled PPO
    (https://arxiv.org/abs/2110.00641).
    """
    assert log_ratios.shape == advantages.shape == mask.shape, (log_ratios.shape, advantages.shape, mask.shape)
    advantages = zero_outside(advantages, mask)
    ratios = ratio(log_ratios)
    plain = -advantages * ratios
    clipped = -advantages * ratios.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    binds = clipped > plain
    losses = torch.maximum(plain, clipped)
    clipped_dual = torch.zeros_like(mask)
    if objective.clip_dual > 0:
        bound = -advantages * objective.clip_dual
        clipped_dual = (advantages < 0) & (losses > bound)
        losses = torch.where(clipped_dual, bound, losses)
    return Surrogate(
        losses=losses,
        ratios=ratios.detach(),
        clipped_low=binds & (advantages < 0),
        clipped_high=binds & (advantages > 0),
        clipped_dual=clipped_dual,
    )


SURROGATES: dict[str, SurrogateFunction] = {"ppo_clip": ppo_clip}


# --- divergence from the reference --------------------------------------------------------------

KL_BOUND = 10.0
"""Largest KL of one token."""

KLFunction = Callable[[Tensor], Tensor]
"""log π/reference [T], clamped → KL(π‖reference) per token."""


def kl_k3(log_ratios: Tensor) -> Tensor:
    """e^−d + d − 1 with d = log π/reference, at most `KL_BOUND`: unbiased under π and never negative."""
    return excess(-log_ratios).clamp(max=KL_BOUND)


KL_ESTIMATORS: dict[str, KLFunction] = {"k3": kl_k3}


# --- aggregation --------------------------------------------------------------------------------

Aggregation = Callable[[Tensor, Tensor], Tensor]
"""(mask [T] bool, sequence of each token [T] int64), both of the whole mini-batch → coefficients [T] float64."""


def token_mean(mask: Tensor, sequences: Tensor) -> Tensor:
    """Every trained token of the mini-batch has the same say: mask / number of trained tokens."""
    assert mask.shape == sequences.shape, (mask.shape, sequences.shape)
    return mask.double() / mask.sum().clamp(min=1)


AGGREGATIONS: dict[str, Aggregation] = {"token_mean": token_mean}


# --- the loss -----------------------------------------------------------------------------------


def policy_loss(logprobs: Tensor, entropy: Tensor, tokens: PolicyTokens, objective: ObjectiveConfig) -> PolicyLoss:
    """The share that these tokens have in the mini-batch's loss.

    Args:
        logprobs: [T] log π of the sampled tokens, with gradient.
        entropy: [T] of π at each token, nats, with gradient.
        tokens: the rest, aligned with `logprobs`.
        objective: clip bounds and coefficients.
    """
    assert logprobs.shape == entropy.shape == tokens.mask.shape, (logprobs.shape, entropy.shape, tokens.mask.shape)
    mask = tokens.mask
    log_ratios = log_ratio(logprobs, tokens.proximal_logprobs, mask)
    surrogate = SURROGATES["ppo_clip"](log_ratios, tokens.advantages, mask, objective)
    losses = zero_outside(tokens.weights, mask) * surrogate.losses
    entropy = zero_outside(at_least_float32(entropy), mask)
    if objective.entropy_coef > 0:
        losses = losses - objective.entropy_coef * entropy
    reference_kl = torch.zeros_like(entropy)
    if tokens.reference_logprobs is not None:
        reference_kl = KL_ESTIMATORS["k3"](log_ratio(logprobs, tokens.reference_logprobs, mask))
        losses = losses + objective.kl_coef * reference_kl
    loss = (tokens.coefficients * losses).sum()
    return PolicyLoss(loss, surrogate, entropy.detach(), reference_kl.detach())
