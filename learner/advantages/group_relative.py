"""Advantages of whole trajectories against the other samples of their prompt.

Owns the baselines. Every token of a trajectory has its trajectory's advantage; a trajectory alone in its group has
no baseline, so its advantage is its score; equal scores give exactly 0. Must not know tokens' order.

Legend: s the score of a trajectory, n the size of its group (rows that count), N trajectories.
"""

import torch
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from learner.advantages.groups import Groups
from learner.advantages.inputs import AdvantageInputs, Advantages
from learner.advantages.whitening import whiten_

EPS = 1e-6
"""Added to the standard deviation of a group."""


def grpo(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """(s − mean) / (std + `EPS`), or without `normalize_by_std` s − mean.

    Group Relative Policy Optimization, DeepSeekMath (https://arxiv.org/abs/2402.03300); without the standard
    deviation Dr. GRPO (https://arxiv.org/abs/2503.20783).
    """
    advantages = _standardized(_groups(inputs), inputs.scores, config.normalize_by_std)
    return Advantages(inputs.spread(advantages), None)


def rloo(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """s − mean of the others, which is n/(n − 1)·(s − mean): REINFORCE Leave-One-Out.

    Back to Basics (https://arxiv.org/abs/2402.14740).
    """
    del config
    groups = _groups(inputs)
    factor = groups.sizes / (groups.sizes - 1).clamp(min=1)
    return Advantages(inputs.spread(factor * groups.centered(inputs.scores)), None)


def opo(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """s − Σ(length·s)/Σ length: the baseline of least variance if gradients grow with length.

    On-Policy RL with Optimal Reward Baseline (https://arxiv.org/abs/2505.23585).
    """
    del config
    return Advantages(inputs.spread(_groups(inputs).centered(inputs.scores, inputs.lengths)), None)


def gpg(inputs: AdvantageInputs, config: AdvantageConfig, *, f_norm: float = 1.0) -> Advantages:
    """α·(s − mean)/`f_norm` with α = N / number of scores that are not 0, of the trajectories that count.

    Group Policy Gradient (https://arxiv.org/abs/2504.02546).
    """
    del config
    groups = _groups(inputs)
    num_counted, num_scored = inputs.counted.sum().double(), (groups.counting(inputs.scores) != 0).sum()
    alpha = num_counted / num_scored.clamp(min=1)
    return Advantages(inputs.spread(alpha / f_norm * groups.centered(inputs.scores)), None)


def grpo_passk(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """The best of a group gets best − second best (over std + `EPS` with `normalize_by_std`), the others 0.

    Pass@k policy optimization (https://arxiv.org/abs/2503.19595).
    """
    groups = _groups(inputs)
    best, second = groups.two_largest(inputs.scores)
    # Where two share the first place, its lead is 0.
    lead = torch.where(groups.counting(inputs.scores) == best, best - second, 0.0)
    if config.normalize_by_std:
        lead = lead / (groups.deviation(groups.centered(inputs.scores)) + EPS)
    return Advantages(inputs.spread(torch.where(groups.alone, inputs.scores, groups.counting(lead))), None)


def reinforce_plus_plus_baseline(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """s − mean of the group, then whitened over all tokens of the batch.

    REINFORCE++ (https://arxiv.org/abs/2501.03262), its form for several samples a prompt.
    """
    del config
    centered = inputs.spread(_groups(inputs).centered(inputs.scores))
    return Advantages(whiten_(centered, inputs.mask), None)


def gdpo(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """GRPO of each reward component by itself, their weighted sum, whitened over all tokens of the batch.

    A component whose scale is small is heard like the others. Group reward-Decoupled normalization Policy
    Optimization (https://arxiv.org/abs/2601.05242).
    """
    components = inputs.component_rewards
    assert components is not None and components.ndim == 2, "gdpo needs component_rewards"
    weights = config.reward_weights or [1.0] * components.shape[1]
    assert len(weights) == components.shape[1], (weights, components.shape)
    groups = _groups(inputs)
    advantages = torch.zeros_like(inputs.scores)
    for weight, component in zip(weights, components.T, strict=True):
        advantages += weight * _standardized(groups, component, config.normalize_by_std)
    spread = inputs.spread(advantages)
    return Advantages(whiten_(spread, inputs.mask), None)


def _groups(inputs: AdvantageInputs) -> Groups:
    return Groups(inputs.groups, inputs.counted)


def _standardized(groups: Groups, scores: Tensor, normalize_by_std: bool) -> Tensor:
    """[N] float64"""
    centered = groups.centered(scores)
    if not normalize_by_std:
        return centered
    return torch.where(groups.alone, centered, centered / (groups.deviation(centered) + EPS))
