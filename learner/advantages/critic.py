"""Advantages of tokens from a critic's values.

Owns what of a batch goes into GAE and V-trace, and GAE's recurrence. Tokens outside of the mask (an environment's
turns) are skipped: what follows a token is the next one that trains.

Legend: N sequences, T tokens; V a value, r a reward.
"""

import torch
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from correction.compaction import Compaction
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
    """Advantages and critic's targets of `correction.vtrace`, with ρ̄ for the policy's ρ̄, too.

    The advantages have the importance weight in them, and are not whitened: their size is that of the rewards.
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
    return Advantages(result.advantages, result.targets)


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
