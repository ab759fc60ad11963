"""Rewards of the trajectories of a prompt → the advantage of each.

Owns the baselines. Pure: no I/O, no loop over groups. Must not know tokens: every token of a trajectory
has its trajectory's advantage.

An estimator is a function in `ADVANTAGES`; the config names it.

Legend: N trajectories, G groups.
"""

from collections.abc import Callable

import torch
from torch import Tensor

EPS = 1e-6
"""Added to the standard deviation of a group."""

Advantage = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""(rewards [N], groups [N] int64, counted [N] bool, normalize_by_std) → advantages [N] float32."""


def grpo(rewards: Tensor, groups: Tensor, counted: Tensor, normalize_by_std: bool) -> Tensor:
    """Reward minus the mean of its group, over the group's standard deviation if asked for.

    DeepSeekMath's Group Relative Policy Optimization (https://arxiv.org/abs/2402.03300); without the
    standard deviation it is Dr. GRPO (https://arxiv.org/abs/2503.20783). Equal rewards give exactly 0.
    A trajectory alone in its group has no baseline: its advantage is its reward.

    Args:
        rewards: [N].
        groups: [N] int64, equal labels are samples of one prompt, labels in [0, N).
        counted: [N] bool; the others neither set a baseline nor have an advantage (0).
        normalize_by_std: divide by the (n − 1) standard deviation + `EPS`.
    """
    assert rewards.shape == groups.shape == counted.shape and rewards.ndim == 1, (rewards.shape, groups.shape)
    num_labels = len(groups)
    values = torch.where(counted, rewards.double(), 0.0)
    sizes = _group_sum(counted.double(), groups, num_labels)
    # Relative to the group's smallest reward, equal rewards are exact zeros, and so is their mean.
    smallest = torch.full((num_labels,), torch.inf, dtype=torch.float64, device=rewards.device)
    smallest = smallest.scatter_reduce(0, groups[counted], values[counted], "amin")
    shifted = torch.where(counted, values - smallest[groups], 0.0)
    centered = shifted - (_group_sum(shifted, groups, num_labels) / sizes.clamp(min=1))[groups]
    centered = torch.where(counted, centered, 0.0)
    alone = (sizes == 1)[groups]
    advantages = torch.where(alone & counted, values, centered)
    if normalize_by_std:
        variance = _group_sum(centered.square(), groups, num_labels) / (sizes - 1).clamp(min=1)
        advantages = torch.where(alone, advantages, advantages / (variance.sqrt()[groups] + EPS))
    return advantages.float()


def _group_sum(values: Tensor, groups: Tensor, num_labels: int) -> Tensor:
    """[N] → [num_labels]"""
    return torch.zeros(num_labels, dtype=values.dtype, device=values.device).index_add(0, groups, values)


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo}
