"""Rewards to go: a plain float64 loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from learner.advantages.reward_to_go import reinforce_plus_plus, remax
from learner.advantages.whitening import whiten
from tests.learner.advantages.batches import drawn_inputs, masks


def looped(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Σ γ^k·r over the tokens of the mask, row by row."""
    returns = torch.zeros(mask.shape, dtype=torch.float64)
    for i, row in enumerate(mask):
        following = 0.0
        for t in reversed(row.nonzero()[:, 0].tolist()):
            following = float(rewards[i, t]) + gamma * following
            returns[i, t] = following
    return returns


@given(masks(), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.integers(0, 1000))
def test_reinforce_plus_plus_equals_a_loop(mask: Tensor, gamma: float, seed: int) -> None:
    inputs = drawn_inputs(mask, seed)
    got = reinforce_plus_plus(inputs, AdvantageConfig(gamma=gamma))
    want = looped(inputs.token_rewards, mask, gamma)
    assert got.returns is not None
    assert torch.allclose(got.returns, want, rtol=1e-9, atol=1e-9)
    assert torch.allclose(got.advantages, whiten(want, mask), rtol=1e-9, atol=1e-9)


@given(masks(), st.integers(0, 1000))
def test_remax_subtracts_the_greedy_reward(mask: Tensor, seed: int) -> None:
    inputs = drawn_inputs(mask, seed)
    assert inputs.baseline_rewards is not None
    got = remax(inputs, AdvantageConfig())
    want = looped(inputs.token_rewards, mask, 1.0)
    baselines = torch.where(mask, inputs.baseline_rewards[:, None], 0.0)
    assert torch.allclose(got.advantages, want - baselines, rtol=1e-9, atol=1e-9)
