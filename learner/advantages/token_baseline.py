"""Advantages of tokens against the other samples of their prompt at the same place.

Owns the optimal token baseline (https://arxiv.org/abs/2602.07078). Of all baselines that may depend on the place in
the response, the one of least variance weighs the returns of a group by the energy W of the gradients up to there:

    B_t = Σ_i G_it·W_it / (Σ_i W_it + `EPS`),   W_t = Σ_{j ≤ t} (1 − 2·π_j + Σ_v π_j(v)²)·w_j²,   A = G − B

with G the reward to go, π_j the probability of the sampled token, w an importance weight if there is one.

Legend: N sequences, T tokens, G groups.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from correction.compaction import Compaction
from correction.masked import zero_outside_
from correction.recurrence import reverse_scan_
from correction.row_chunks import row_chunks
from learner.advantages.groups import Groups
from learner.advantages.inputs import AdvantageInputs, Advantages

EPS = 1e-8
"""Added to the summed energy."""


def optimal_token_baseline(inputs: AdvantageInputs, config: AdvantageConfig, *, zero_tail: bool = True) -> Advantages:
    """A = G − B, tokens compared by their place in the response, environment turns included.

    A trajectory alone in its group has no baseline.

    Args:
        inputs: with `proximal_logprobs` and `sum_pi_squared`; `weights` if there are any.
        config: not read.
        zero_tail: where only the longest of a group goes on, B is 0; else B there is its own return, and A nearly 0.
    """
    del config
    return _baselined(inputs, Compaction.unmoved, zero_tail)


def tir_optimal_token_baseline(
    inputs: AdvantageInputs, config: AdvantageConfig, *, zero_tail: bool = True
) -> Advantages:
    """`optimal_token_baseline` with tokens compared by their number among those that the policy sampled.

    For tool-integrated reasoning, where turns of an environment shift places.
    """
    del config
    return _baselined(inputs, Compaction.of, zero_tail)


@torch.no_grad()
def _baselined(inputs: AdvantageInputs, layout: Callable[[Tensor], Compaction], zero_tail: bool) -> Advantages:
    groups = Groups(inputs.groups, inputs.counted)
    num_groups, width = groups.num_groups, inputs.mask.shape[1]
    weighted_returns = inputs.token_rewards.new_zeros(num_groups, width, dtype=inputs.dtype)
    energies = torch.zeros_like(weighted_returns)
    returns, ends = inputs.empty(), []
    for rows in row_chunks(inputs.mask):
        tokens = layout(inputs.mask[rows])
        to_go = reverse_scan_(1.0, tokens.pack(inputs.token_rewards[rows]))
        energy = _energy(inputs, tokens, rows)
        energies.index_add_(0, groups.index[rows], energy)
        weighted_returns.index_add_(0, groups.index[rows], energy.mul_(to_go))
        tokens.unpack(to_go, out=returns[rows])
        ends.append(tokens.ends)
    baselines = weighted_returns.div_(energies.add_(EPS))
    baseline_ends = _baseline_ends(groups, torch.cat(ends), zero_tail, width)
    advantages = inputs.empty()
    places = torch.arange(width, device=inputs.mask.device)
    for rows in row_chunks(inputs.mask):
        tokens = layout(inputs.mask[rows])
        baseline = zero_outside_(baselines[groups.index[rows]], places < baseline_ends[rows, None])
        torch.sub(returns[rows], tokens.unpack(baseline), out=advantages[rows])
    return Advantages(advantages, returns)


def _energy(inputs: AdvantageInputs, tokens: Compaction, rows: slice) -> Tensor:
    """W of a few rows, in the layout of `tokens`; 0 where no token is."""
    assert inputs.proximal_logprobs is not None and inputs.sum_pi_squared is not None, "needs the policy's scores"
    energy = tokens.pack(inputs.sum_pi_squared[rows])
    energy.add_(1).sub_(tokens.pack(inputs.proximal_logprobs[rows]).exp_(), alpha=2)
    if inputs.weights is not None:
        energy.mul_(tokens.pack(inputs.weights[rows]).square_())
    return zero_outside_(zero_outside_(energy, tokens.packed_mask).cumsum(1), tokens.packed_mask)


def _baseline_ends(groups: Groups, ends: Tensor, zero_tail: bool, width: int) -> Tensor:
    """[N] places from which on a row has no baseline: from the first for a row alone, and with `zero_tail` for the
    longest of a group from where the second longest ends."""
    baseline_ends = torch.full_like(ends, width)
    if zero_tail:
        longest, second = groups.two_largest(ends)
        goes_on_alone = (ends == longest) & (longest > second) & ~groups.alone
        baseline_ends = torch.where(goes_on_alone, second.clamp(min=0).long(), baseline_ends)
    return torch.where(groups.alone, 0, baseline_ends)
