"""What can be said of a correction: how much sample it left, how far μ and π_prox are apart.

Numbers for people, detached from any gradient, summed in float64, defined for an empty mask (0).

Legend: T tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from correction.masked import masked_max, masked_mean, masked_share, zero_outside
from correction.ratios import excess, log_ratio
from correction.weights import TokenWeights


class WeightDiagnostics(NamedTuple):
    """Of the weights that the loss used, over the mask."""

    mean: float
    max: float
    truncated_share: float
    ess: float
    """Effective sample size as a share, in (0, 1]; 0 where nothing has weight."""


class PolicyGap(NamedTuple):
    """How far the behaviour policy is from the proximal one, over the mask."""

    max_abs: float
    """Largest |log μ − log π_prox|, not clamped, nats."""
    k1: float
    """KL(μ‖π_prox) as the mean of log μ − log π_prox: unbiased, may be negative."""
    k3: float
    """The same as the mean of ρ − 1 − log ρ: never negative, less variance (clamped log-ratio)."""


@torch.no_grad()
def effective_sample_size(weights: Tensor, mask: Tensor) -> float:
    """(Σw)² / (n·Σw²) over the mask: the share of the tokens that equal weights would need for this variance.

    Kong, 1992; 1 for equal weights, 1/n for a single one that counts, 0 where none does.
    """
    chosen = weights.double()
    largest = masked_max(chosen, mask)
    if largest <= 0:
        return 0.0
    # Scaled by the largest weight, whose square could leave the range otherwise.
    scaled = zero_outside(chosen, mask) / largest
    return float(scaled.sum().square() / (mask.sum() * scaled.square().sum()))


@torch.no_grad()
def diagnose_weights(token_weights: TokenWeights, mask: Tensor) -> WeightDiagnostics:
    """Summarises weights [T] over the mask [T] bool."""
    weights = token_weights.weights.double()
    return WeightDiagnostics(
        mean=float(masked_mean(weights, mask)),
        max=float(masked_max(weights, mask)),
        truncated_share=float(masked_share(token_weights.truncated, mask)),
        ess=effective_sample_size(weights, mask),
    )


@torch.no_grad()
def policy_gap(rollout_logprobs: Tensor, proximal_logprobs: Tensor, mask: Tensor) -> PolicyGap:
    """Compares μ and π_prox on the tokens that μ sampled.

    Args:
        rollout_logprobs: [T] log μ.
        proximal_logprobs: [T] log π_prox.
        mask: [T] bool.
    """
    mu, prox = rollout_logprobs.double(), proximal_logprobs.double()
    return PolicyGap(
        max_abs=float(masked_max((mu - prox).abs(), mask)),
        k1=float(masked_mean(mu - prox, mask)),
        k3=float(masked_mean(excess(log_ratio(prox, mu, mask)), mask)),
    )
