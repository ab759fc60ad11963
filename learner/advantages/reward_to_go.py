"""Advantages of tokens from the rewards that follow them, without a critic.

Tokens outside of the mask are skipped: neither their reward counts nor does a discount for them.

Legend: N sequences, T tokens.
"""

import torch
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from correction.compaction import Compaction
from correction.recurrence import reverse_scan_
from correction.row_chunks import row_chunks
from learner.advantages.inputs import AdvantageInputs, Advantages
from learner.advantages.whitening import whiten


def reinforce_plus_plus(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """The reward to go, discounted by γ a token and whitened over all tokens of the batch.

    REINFORCE++ (https://arxiv.org/abs/2501.03262).
    """
    returns = reward_to_go(inputs, config.gamma)
    return Advantages(whiten(returns, inputs.mask), returns)


def remax(inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """The reward to go less the reward of the prompt's greedy rollout.

    ReMax (https://arxiv.org/abs/2310.10505).
    """
    del config
    assert inputs.baseline_rewards is not None, "remax needs baseline_rewards"
    returns = reward_to_go(inputs, 1.0)
    return Advantages(returns - inputs.spread(inputs.baseline_rewards), returns)


@torch.no_grad()
def reward_to_go(inputs: AdvantageInputs, gamma: float) -> Tensor:
    """[N, T] Σ_k γ^k·r of the k-th token from each on, itself the 0th; 0 outside of the mask."""
    returns = inputs.empty()
    for rows in row_chunks(inputs.mask):
        tokens = Compaction.of(inputs.mask[rows])
        tokens.unpack(reverse_scan_(gamma, tokens.pack(inputs.token_rewards[rows])), out=returns[rows])
    return returns
