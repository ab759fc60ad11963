"""The rewards that a batch's advantages are made of: what the reward function said, less what is held against it.

Owns the order: the penalty for overlong answers, the place of each reward at a token that counts, the KL to the
reference. Pure. Each formula stands in a module of its own.

Legend: N trajectories, T response positions.
"""

from dataclasses import dataclass

from torch import Tensor

from async_rl.config.objective import KLPlacement
from async_rl.config.schema import RunConfig
from learner.batch import TrainingBatch
from learner.losses.kl import kl_in_reward
from learner.reward_shaping import overlong_penalty, settle_rewards
from learner.scoring import ModelScores


@dataclass(frozen=True, kw_only=True)
class ShapedRewards:
    """Rewards, and what changed them."""

    token_rewards: Tensor
    """[N, T] float32, 0 outside of the mask."""
    overlong: Tensor
    """[N] ≥ 0: what each trajectory lost for its length."""
    kl_mean: float | None
    """Of the KL in the reward, nats a token; None where it is not in the reward."""


def shape_rewards(
    batch: TrainingBatch, models: ModelScores, mask: Tensor, config: RunConfig, *, kl_coef: float
) -> ShapedRewards:
    """Rewards of the tokens that count.

    Args:
        batch: what the reward function said.
        models: log-probabilities, for the KL.
        mask: [N, T] bool: tokens that may carry a reward.
        config: names the penalties.
        kl_coef: of the KL in the reward; not read where it is in the loss.
    """
    overlong = overlong_penalty(
        batch.response_lengths,
        max_new_tokens=config.generation.max_new_tokens,
        buffer=config.reward.overlong_buffer,
        penalty=config.reward.overlong_penalty,
    )
    rewards = settle_rewards(batch.rewards_with(-overlong), mask)
    if config.kl.coef == 0 or config.kl.placement is KLPlacement.loss:
        return ShapedRewards(token_rewards=rewards, overlong=overlong, kl_mean=None)
    assert models.logprobs is not None and models.reference_logprobs is not None
    penalised = kl_in_reward(
        rewards,
        models.logprobs,
        models.reference_logprobs,
        mask,
        estimator=config.kl.estimator.value,
        coef=kl_coef,
    )
    return ShapedRewards(token_rewards=penalised.token_rewards, overlong=overlong, kl_mean=float(penalised.kl_mean))
