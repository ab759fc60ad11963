"""What is held against a trajectory, and where its reward stands.

Owns two formulas. Pure. Must not know advantages, or what the reward function said.

Legend: N sequences, T response positions.
"""

import torch
from torch import Tensor

from correction.masked import zero_outside
from correction.ratios import at_least_float32


def overlong_penalty(lengths: Tensor, *, max_new_tokens: int, buffer: int, penalty: float) -> Tensor:
    """What each response loses for its length: nothing before the buffer, all of `penalty` at the limit.

    DAPO's soft overlong punishment (https://arxiv.org/abs/2503.14476): penalty · clip((length − (limit − buffer)) /
    buffer, 0, 1).

    Args:
        lengths: [N] response tokens.
        max_new_tokens: the limit.
        buffer: the last so many tokens before it; 0 turns it off.
        penalty: ≥ 0.

    Returns:
        [N] float32 ≥ 0.
    """
    if buffer == 0:
        return torch.zeros(lengths.shape)
    over = lengths.float() - (max_new_tokens - buffer)
    return penalty * (over / buffer).clamp(0, 1)


def settle_rewards(token_rewards: Tensor, mask: Tensor) -> Tensor:
    """Moves every reward to a token that counts: the last of the mask at or before it, else the first one.

    So a trajectory's sum stays what it was, whoever wrote its last token; that of an empty row is 0.

    Args:
        token_rewards: [N, T], finite.
        mask: [N, T] bool.

    Returns:
        [N, T], 0 outside of the mask.
    """
    rewards = at_least_float32(token_rewards)
    # The number of tokens that count up to each position is, less one, the rank of the one that takes its reward.
    ranks = (mask.cumsum(1) - 1).clamp(min=0)
    by_rank = torch.zeros_like(rewards).scatter_add(1, ranks, rewards)
    return zero_outside(by_rank.gather(1, ranks), mask)
