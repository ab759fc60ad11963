"""V-trace: what a critic should say, and what an action was worth, from another policy's samples.

Owns the recurrence. Must not know where log-ratios come from. Espeholt et al., IMPALA: Scalable Distributed Deep-RL
with Importance Weighted Actor-Learner Architectures (https://arxiv.org/abs/1802.01561), with its letters:

    δ_t = ρ_t·(r_t + γ_t·V_{t+1} − V_t)                              ρ_t = min(ρ̄, π/μ)
    v_t = V_t + δ_t + γ_t·c_t·(v_{t+1} − V_{t+1})                    c_t = λ·min(c̄, π/μ)
    A_t = min(ρ̄_pg, π/μ)·(r_t + γ_t·q_{t+1} − V_t)                   q = λ·v + (1 − λ)·V

With μ = π and λ = 1, v is the on-policy n-step return.

Legend: N sequences, T tokens; the policy π is the learner's at the batch's start, μ is who sampled.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from correction.batch_memory import empty_batch
from correction.compaction import Compaction
from correction.ratios import at_least_float32
from correction.recurrence import reverse_scan_
from correction.row_chunks import row_chunks


class VTrace(NamedTuple):
    """Detached; 0 outside of the mask."""

    targets: Tensor
    """[N, T] v: what the critic should have said."""
    advantages: Tensor
    """[N, T] A: weighs the gradient of log π; has ρ in it, so that no other importance weight belongs there."""


@torch.no_grad()
def vtrace(
    log_rhos: Tensor,
    rewards: Tensor,
    values: Tensor,
    *,
    next_values: Tensor | None = None,
    discounts: Tensor | float = 1.0,
    mask: Tensor | None = None,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
    pg_rho_cap: float = 1.0,
    trace_lambda: float = 1.0,
) -> VTrace:
    """Targets and advantages; tokens outside of the mask are skipped, the recurrence goes from token to token.

    Args:
        log_rhos: [N, T] log π/μ of the sampled tokens, nats.
        rewards: [N, T] r.
        values: [N, T] V, of the state in which each token was sampled.
        next_values: [N, T] V of the state after it; None: of the next token in the mask, 0 after a row's last.
        discounts: [N, T] γ, 0 where an episode ends, or one for all.
        mask: [N, T] bool; None: every token. What stands outside is no data.
        rho_cap: ρ̄ > 0; decides what the critic learns the value of.
        c_cap: c̄ > 0; decides how fast.
        pg_rho_cap: ρ̄_pg > 0.
        trace_lambda: λ in [0, 1].
    """
    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    assert log_rhos.shape == rewards.shape == values.shape == mask.shape, (log_rhos.shape, rewards.shape, values.shape)
    for cap in (rho_cap, c_cap, pg_rho_cap):
        assert 0 < cap < math.inf, cap
    dtype = at_least_float32(values[:0]).dtype
    result = VTrace(empty_batch(mask, dtype), empty_batch(mask, dtype))
    caps = _Caps(rho_cap, c_cap, pg_rho_cap, trace_lambda)
    for rows in row_chunks(mask) if mask.numel() else ():
        later = None if next_values is None else next_values[rows]
        gammas = discounts[rows] if isinstance(discounts, Tensor) else discounts
        steps = _Steps(log_rhos[rows], rewards[rows], values[rows], later, gammas)
        _solve(steps, Compaction.of(mask[rows]), caps, VTrace(result.targets[rows], result.advantages[rows]))
    return result


class _Caps(NamedTuple):
    rho: float
    c: float
    pg_rho: float
    trace_lambda: float


class _Steps(NamedTuple):
    log_rhos: Tensor
    rewards: Tensor
    values: Tensor
    next_values: Tensor | None
    discounts: Tensor | float


def _solve(steps: _Steps, tokens: Compaction, caps: _Caps, out: VTrace) -> None:
    """Fills `out` for a few rows; what it needs on the way is gone with it."""
    values = tokens.pack(steps.values)
    next_values = following = _following(values)
    if steps.next_values is not None:
        next_values = tokens.pack(steps.next_values)
        _end_with(next_values, following, tokens.ends)
    gammas = tokens.pack(steps.discounts) if isinstance(steps.discounts, Tensor) else steps.discounts
    rhos = tokens.pack(steps.log_rhos).exp_()
    errors = tokens.pack(steps.rewards).sub_(values)
    deltas = _plus(errors.clone(), gammas, next_values).mul_(rhos.clamp(max=caps.rho))
    traces = rhos.clamp(max=caps.c).mul_(gammas * caps.trace_lambda)
    corrections = reverse_scan_(traces, deltas)
    q = following.add_(_following(corrections), alpha=caps.trace_lambda)
    tokens.unpack(_plus(errors, gammas, q).mul_(rhos.clamp_(max=caps.pg_rho)), out=out.advantages)
    tokens.unpack(corrections.add_(values), out=out.targets)


def _following(values: Tensor) -> Tensor:
    """[N, T] → [N, T]: of each place what stands in the next, 0 in the last."""
    return torch.nn.functional.pad(values[:, 1:], (0, 1))


def _end_with(source: Tensor, target: Tensor, ends: Tensor) -> None:
    """Copies from source to target [N, T] what stands in the last place before `ends` [N]."""
    last = (ends - 1).clamp_(min=0)[:, None]
    target.scatter_(1, last, source.gather(1, last))


def _plus(values: Tensor, factors: Tensor | float, others: Tensor) -> Tensor:
    """values + factors·others, in place."""
    return values.addcmul_(factors, others) if isinstance(factors, Tensor) else values.add_(others, alpha=factors)
