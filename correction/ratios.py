"""Probability ratios of one policy over another, from log-probabilities.

Owns the one clamp before the one `exp`. Everything stays in log space until `ratio`.

Legend: T tokens; log-probabilities are natural logs (nats) of the token that was sampled.
"""

import torch
from torch import Tensor

from correction.masked import zero_outside

LOG_RATIO_BOUND = 20.0
"""e^20 ≈ 5·10^8: far beyond any ratio that means something, far below what overflows float32 when squared."""


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision raised to float32: near 1, bfloat16 steps by 0.8 %. float64 stays."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """Computes log(p/q) per token, clamped to ±`LOG_RATIO_BOUND`; exactly 0 outside of the mask.

    The gradient is 0 where the clamp binds and outside of the mask, whatever stands there.

    Args:
        numerator: [T] log p.
        denominator: [T] log q.
        mask: [T] bool.

    Returns:
        [T], float32 or wider.
    """
    assert numerator.shape == denominator.shape == mask.shape, (numerator.shape, denominator.shape, mask.shape)
    log_p = zero_outside(at_least_float32(numerator), mask)
    log_q = zero_outside(at_least_float32(denominator), mask)
    return (log_p - log_q).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def ratio(log_ratios: Tensor) -> Tensor:
    """p/q of clamped log-ratios, finite by construction."""
    return log_ratios.exp()


def excess(log_ratios: Tensor) -> Tensor:
    """e^x − 1 − x of clamped log-ratios: never negative, 0 for equal policies, exact near 0.

    With x = log q/p and samples of p, its mean is KL(p‖q): the estimator k3 of Schulman, Approximating KL
    Divergence, http://joschu.net/blog/kl-approx.html.
    """
    return (log_ratios.expm1() - log_ratios).clamp(min=0)
