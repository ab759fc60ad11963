"""GAE and V-trace: a plain float64 loop, holes that are skipped."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from correction.vtrace import vtrace as vtrace_targets
from learner.advantages.critic import gae, lambda_advantages, vtrace
from learner.advantages.whitening import whiten
from tests.learner.advantages.batches import drawn_inputs, masks

weights = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def looped(rewards: list[float], values: list[float], gamma: float, trace_lambda: float) -> list[float]:
    """Advantages of one row without holes."""
    advantages = []
    following = following_value = 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        following = reward + gamma * following_value - value + gamma * trace_lambda * following
        following_value = value
        advantages.append(following)
    return advantages[::-1]


@given(masks(), weights, weights, st.integers(0, 1000))
def test_gae_equals_a_loop_over_the_tokens_of_the_mask(
    mask: Tensor, gamma: float, trace_lambda: float, seed: int
) -> None:
    inputs = drawn_inputs(mask, seed)
    got = gae(inputs, AdvantageConfig(gamma=gamma, trace_lambda=trace_lambda))
    assert inputs.values is not None and got.returns is not None
    raw, returns = torch.zeros(mask.shape, dtype=torch.float64), torch.zeros(mask.shape, dtype=torch.float64)
    for i, row in enumerate(mask):
        r, v = inputs.token_rewards[i][row], inputs.values[i][row]
        raw[i, row] = torch.tensor(looped(r.tolist(), v.tolist(), gamma, trace_lambda), dtype=torch.float64)
        returns[i, row] = raw[i, row] + v
    assert torch.allclose(got.returns, returns, rtol=1e-9, atol=1e-9)
    assert torch.allclose(got.advantages, whiten(raw, mask), rtol=1e-9, atol=1e-9)


@given(st.integers(1, 30), weights, st.integers(0, 1000))
def test_discounts_of_zero_end_an_episode(length: int, trace_lambda: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.rand(2, 1, 2 * length, generator=generator, dtype=torch.float64)
    discounts = torch.full_like(rewards, 0.9)
    discounts[:, length - 1] = discounts[:, -1] = 0.0
    together = lambda_advantages(
        rewards, values, discounts=discounts, trace_lambda=trace_lambda, bootstrap=torch.tensor([1e9])
    )
    halves = [slice(0, length), slice(length, 2 * length)]
    apart = [
        lambda_advantages(rewards[:, half], values[:, half], discounts=0.9, trace_lambda=trace_lambda)
        for half in halves
    ]
    assert torch.allclose(together, torch.cat(apart, 1), rtol=1e-9, atol=1e-9)


def test_a_turn_of_the_environment_changes_nothing() -> None:
    plain = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]])
    with_turn = torch.tensor([[1.0, torch.nan, torch.nan, 2.0, 3.0], [0.0, torch.nan, torch.nan, 1.0, 0.0]])
    config = AdvantageConfig(gamma=0.9, trace_lambda=0.8)
    batches = [plain, with_turn]
    inputs = [replace(drawn_inputs(~b.isnan(), 0), token_rewards=b, values=b * 0.5) for b in batches]
    want, got = (gae(i, config) for i in inputs)
    assert want.returns is not None and got.returns is not None
    tokens = [0, 3, 4]
    assert torch.allclose(got.advantages[:, tokens], want.advantages)
    assert torch.allclose(got.returns[:, tokens], want.returns)


def test_vtrace_takes_its_caps_from_the_config() -> None:
    inputs = drawn_inputs(torch.rand(5, 9, generator=torch.Generator().manual_seed(0)) < 0.7, 0)
    assert inputs.values is not None and inputs.log_rhos is not None
    config = AdvantageConfig(gamma=0.9, trace_lambda=0.8, rho_cap=1.3, c_cap=0.9)
    got = vtrace(inputs, config)
    want = vtrace_targets(
        inputs.log_rhos,
        inputs.token_rewards,
        inputs.values,
        discounts=0.9,
        mask=inputs.mask,
        rho_cap=1.3,
        c_cap=0.9,
        pg_rho_cap=1.3,
        trace_lambda=0.8,
    )
    assert got.returns is not None
    assert torch.equal(got.returns, want.targets)
    # A constant baseline goes with the weight that its token has.
    weights = torch.where(inputs.mask, inputs.log_rhos.exp().clamp(max=1.3), 0.0)
    baseline = want.advantages.sum() / weights.sum()
    expected = want.advantages - baseline * weights
    expected = expected / (expected[inputs.mask].var() + 1e-8).sqrt()
    assert torch.allclose(got.advantages, expected, rtol=1e-6, atol=1e-9)


def test_on_policy_vtrace_is_gae() -> None:
    inputs = drawn_inputs(torch.ones(3, 8, dtype=torch.bool), 0)
    inputs = replace(inputs, log_rhos=torch.zeros_like(inputs.token_rewards))
    config = AdvantageConfig(gamma=0.9, trace_lambda=1.0)
    off, on = vtrace(inputs, config), gae(inputs, config)
    assert off.returns is not None and on.returns is not None
    assert torch.allclose(off.returns, on.returns, rtol=1e-9, atol=1e-9)
    assert torch.allclose(off.advantages, on.advantages, rtol=1e-9, atol=1e-9)
