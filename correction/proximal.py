"""π_prox without a scoring pass.

Owns the approximation of the policy at the batch's start from the two that are known anyway: μ, which sampled, and
π, which trains.

Legend: N sequences, T tokens.
"""

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import at_least_float32


@torch.no_grad()
def log_linear_proximal(logprobs: Tensor, rollout_logprobs: Tensor, staleness: Tensor, mask: Tensor) -> Tensor:
    """log π_prox ≈ log μ + α·(log π − log μ), α = d/(d + 1) for a token of staleness d.

    A-3PO (https://arxiv.org/abs/2512.06547): on the straight line in log space from the version that sampled to the
    policy that trains. Here versions say where: μ is of v − d, π_prox of v, and π on its way to v + 1. So fresh tokens
    are held to μ itself, and the older a token, the closer its anchor is to π: the clip then bounds the last step
    alone, and the weight π_prox/μ bears the rest.

    Args:
        logprobs: [N, T] log π now; no gradient goes through the result.
        rollout_logprobs: [N, T] log μ.
        staleness: [N, T] integers ≥ 0, versions.
        mask: [N, T] bool.

    Returns:
        [N, T] float32 or wider, 0 outside of the mask.
    """
    assert logprobs.shape == rollout_logprobs.shape == staleness.shape == mask.shape, (logprobs.shape, staleness.shape)
    assert not staleness.is_floating_point(), staleness.dtype
    log_pi = zero_outside(at_least_float32(logprobs), mask)
    log_mu = zero_outside(at_least_float32(rollout_logprobs), mask)
    distance = staleness.masked_fill(~mask, 0).to(log_pi.dtype)
    return torch.lerp(log_mu, log_pi, distance / (distance + 1))
