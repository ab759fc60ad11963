"""Advantages of tokens from a critic's values.

Owns what of a batch goes into GAE and V-trace, and GAE's recurrence. Tokens outside of the mask (an environment's
turns) are skipped: what follows a token is the next one that trains.

Legend: N sequences, T tokens; V a value, r a reward.
"""

import math

import torch
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from correction.compaction import Compaction
from correction.masked import zero_outside_
from correction.ratios import at_least_float32
from correction.recurrence import reverse_scan_
from correction.row_chunks import row_chunks
from correction.vtrace import vtrace as vtrace_targets
from learner.advantages.inputs import AdvantageInputs, Advantages
from learner.advantages.whitening import whiten_


@torch.no_grad()
def gae(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """`lambda_advantages` over the tokens that train, whitened; the returns are those advantages + V before."""
    assert inputs.values is not None, "gae needs values"
    advantages, returns = inputs.empty(), inputs.empty()
    for rows in row_chunks(inputs.mask):
        tokens = Compaction.of(inputs.mask[rows])
        values = tokens.pack(inputs.values[rows])
        gains = lambda_advantages(
            tokens.pack(inputs.token_rewards[rows]), values, discounts=config.gamma, trace_lambda=config.trace_lambda
        )
        tokens.unpack(gains, out=advantages[rows])
        tokens.unpack(gains.add_(values), out=returns[rows])
    return Advantages(whiten_(advantages, inputs.mask), returns)


@torch.no_grad()
def vtrace(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """Advantages and critic's targets of `correction.vtrace`, with ρ̄ for the policy's ρ̄, too; whitened.

    The advantages have the importance weight in them. What whitening takes away is a constant baseline b, so it goes
    with the same weight: A − b·min(ρ̄, ρ), with the b that leaves the mean 0. With μ = π this is `gae`.
    """
    assert inputs.values is not None and inputs.log_rhos is not None, "vtrace needs values and log_rhos"
    result = vtrace_targets(
        inputs.log_rhos,
        inputs.token_rewards,
        inputs.values,
        discounts=config.gamma,
        mask=inputs.mask,
        rho_cap=config.rho_cap,
        c_cap=config.c_cap,
        pg_rho_cap=config.rho_cap,
        trace_lambda=config.trace_lambda,
    )
    advantages = _less_constant_baseline(result.advantages, inputs, config.rho_cap)
    return Advantages(whiten_(advantages, inputs.mask), result.targets)


def _less_constant_baseline(advantages: Tensor, inputs: AdvantageInputs, rho_cap: float) -> Tensor:
    """In place: advantages [N, T] of mean 0 over the mask."""
    assert inputs.log_rhos is not None
    total, total_weight = 0.0, 0.0
    for rows in row_chunks(inputs.mask):
        total += float(advantages[rows].sum(dtype=torch.float64))
        total_weight += float(_weights(inputs.log_rhos[rows], inputs.mask[rows], rho_cap).sum(dtype=torch.float64))
    baseline = total / total_weight if total_weight > 0 else 0.0
    for rows in row_chunks(inputs.mask):
        advantages[rows].sub_(_weights(inputs.log_rhos[rows], inputs.mask[rows], rho_cap), alpha=baseline)
    return advantages


def _weights(log_rhos: Tensor, mask: Tensor, rho_cap: float) -> Tensor:
    """min(ρ̄, ρ) [N, T], 0 outside of the mask."""
    return zero_outside_(at_least_float32(log_rhos).clamp(max=math.log(rho_cap)).exp_(), mask)


@torch.no_grad()
def lambda_advantages(
    rewards: Tensor,
    values: Tensor,
    *,
    discounts: Tensor | float,
    trace_lambda: float,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """Generalized Advantage Estimation: A_t = δ_t + γ_t·λ·A_{t+1} with δ_t = r_t + γ_t·V_{t+1} − V_t.

    Schulman et al. (https://arxiv.org/abs/1506.02438). Every position is a token; nothing is whitened.

    Args:
        rewards: [N, T] r.
        values: [N, T] V.
        discounts: [N, T] γ, 0 where an episode ends, or one for all.
        trace_lambda: λ in [0, 1].
        bootstrap: [N] V after the last token; None: 0.

    Returns:
        [N, T], detached.
    """
    deltas = rewards - values
    later = values[:, 1:]
    if bootstrap is not None:
        later = torch.cat([later, bootstrap[:, None]], 1)
    followed = deltas[:, : later.shape[1]]
    if isinstance(discounts, Tensor):
        followed.addcmul_(discounts[:, : later.shape[1]], later)
    else:
        followed.add_(later, alpha=discounts)
    return reverse_scan_(discounts * trace_lambda, deltas)
