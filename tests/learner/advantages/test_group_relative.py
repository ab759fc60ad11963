"""Baselines of groups: a plain loop, rows alone, equal rewards, and who counts in a baseline."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from learner.advantages.group_relative import (
    EPS,
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    opo,
    reinforce_plus_plus_baseline,
    rloo,
)
from learner.advantages.inputs import AdvantageInputs, EstimatorFunction
from tests.learner.advantages.batches import drawn_inputs, masks

UNWHITENED = [grpo, rloo, opo, gpg, grpo_passk]
PLAIN, BY_STD = AdvantageConfig(normalize_by_std=False), AdvantageConfig(normalize_by_std=True)


def outcomes(rewards: list[float], groups: list[int], rejected: tuple[int, ...] = ()) -> AdvantageInputs:
    """Trajectories of one token each; a rejected one holds no data."""
    mask = torch.ones(len(rewards), 1, dtype=torch.bool)
    mask[list(rejected)] = False
    token_rewards = torch.tensor(rewards)[:, None]
    components = torch.stack([token_rewards[:, 0], 2 * token_rewards[:, 0]], 1)
    return AdvantageInputs(
        mask=mask, token_rewards=token_rewards, groups=torch.tensor(groups), component_rewards=components
    )


def column(tokens: Tensor) -> list[float]:
    return [float(x) for x in tokens[:, 0]]


def test_two_right_of_four() -> None:
    inputs = outcomes([1.0, 0.0, 1.0, 0.0], [7, 7, 7, 7])
    assert column(grpo(inputs, PLAIN).advantages) == [0.5, -0.5, 0.5, -0.5]
    assert column(grpo(inputs, BY_STD).advantages) == pytest.approx([0.8660, -0.8660, 0.8660, -0.8660], abs=1e-4)
    assert column(rloo(inputs, PLAIN).advantages) == pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3])
    assert column(gpg(inputs, PLAIN).advantages) == [1.0, -1.0, 1.0, -1.0]
    assert column(grpo_passk(inputs, PLAIN).advantages) == [0.0, 0.0, 0.0, 0.0]


def test_three_of_four_with_a_score() -> None:
    inputs = outcomes([1.0, 2.0, 3.0, 0.0], [7, 7, 7, 7])
    wide = replace(inputs, token_rewards=inputs.token_rewards.double())
    assert column(gpg(wide, PLAIN).advantages) == pytest.approx([-2 / 3, 2 / 3, 2.0, -2.0], abs=1e-15)


@given(masks(), st.integers(0, 1000))
def test_they_equal_plain_loops(mask: Tensor, seed: int) -> None:
    inputs = drawn_inputs(mask, seed)
    num_rows, counted = len(mask), [bool(row.any()) for row in mask]
    scores = [float(r[m].sum()) for r, m in zip(inputs.token_rewards, mask, strict=True)]
    lengths = [int(row.sum()) for row in mask]
    peers = [[j for j in range(num_rows) if counted[j] and inputs.groups[j] == g] for g in inputs.groups]
    num_scored = max(1, sum(kept and s != 0 for kept, s in zip(counted, scores, strict=True)))

    def check(function: EstimatorFunction, config: AdvantageConfig, formula: Callable[[int, list[int]], float]) -> None:
        got = function(inputs, config).advantages
        assert got.dtype == torch.float64
        for i in range(num_rows):
            want = 0.0 if not counted[i] else scores[i] if len(peers[i]) == 1 else formula(i, peers[i])
            want = want * sum(counted) / num_scored if function is gpg else want
            assert torch.allclose(got[i], want * mask[i].double(), rtol=1e-9, atol=1e-9)

    def mean(js: list[int]) -> float:
        return statistics.fmean(scores[j] for j in js)

    def lead(i: int, js: list[int]) -> float:
        first, second, *_ = sorted((scores[j] for j in js), reverse=True)
        return first - second if scores[i] == first else 0.0

    def std(js: list[int]) -> float:
        return statistics.stdev(scores[j] for j in js) + EPS

    check(grpo, PLAIN, lambda i, js: scores[i] - mean(js))
    check(grpo, BY_STD, lambda i, js: (scores[i] - mean(js)) / std(js))
    check(rloo, PLAIN, lambda i, js: scores[i] - mean([j for j in js if j != i]))
    check(opo, PLAIN, lambda i, js: scores[i] - sum(lengths[j] * scores[j] for j in js) / sum(lengths[j] for j in js))
    check(gpg, PLAIN, lambda i, js: scores[i] - mean(js))
    check(grpo_passk, PLAIN, lead)
    check(grpo_passk, BY_STD, lambda i, js: lead(i, js) / std(js))


@pytest.mark.parametrize("config", [PLAIN, BY_STD])
@given(reward=st.floats(-(2.0**100), 2.0**100, width=32), size=st.integers(2, 9))
def test_equal_rewards_give_exactly_nothing(config: AdvantageConfig, reward: float, size: int) -> None:
    inputs = outcomes([reward] * size, [3] * size)
    for function in [*UNWHITENED, reinforce_plus_plus_baseline, gdpo]:
        assert column(function(inputs, config).advantages) == [0.0] * size


def test_a_trajectory_alone_has_its_score() -> None:
    inputs = outcomes([3.0, 5.0, 100.0], [0, 1, 1], rejected=(2,))
    for function in UNWHITENED:
        for config in (PLAIN, BY_STD):
            assert column(function(inputs, config).advantages) == [3.0, 5.0, 0.0]


def test_a_rejected_trajectory_sets_no_baseline() -> None:
    inputs = outcomes([9.0, 1.0, 0.0], [4, 4, 4], rejected=(0,))
    assert column(grpo(inputs, PLAIN).advantages) == [0.0, 0.5, -0.5]
    assert column(rloo(inputs, PLAIN).advantages) == [0.0, 1.0, -1.0]
    assert column(opo(inputs, PLAIN).advantages) == [0.0, 0.5, -0.5]
    assert column(grpo_passk(inputs, PLAIN).advantages) == [0.0, 1.0, 0.0]


def test_components_count_by_their_weights() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 30.0], [0.0, 0.0], [1.0, 0.0]])
    inputs = replace(outcomes([0.0] * 4, [0] * 4), component_rewards=rewards)
    first = gdpo(inputs, AdvantageConfig(reward_weights=[1.0, 0.0])).advantages
    assert column(first) == pytest.approx([0.8660, -0.8660, -0.8660, 0.8660], abs=1e-3)
    # Each by its own scale: 30 times the reward is not 30 times the say.
    both = gdpo(inputs, BY_STD).advantages
    smaller = gdpo(replace(inputs, component_rewards=rewards / torch.tensor([1.0, 30.0])), BY_STD).advantages
    assert torch.allclose(both, smaller, atol=1e-4)


def test_half_precision_rewards_give_float32() -> None:
    inputs = replace(outcomes([1.0, 0.0], [0, 0]), token_rewards=torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16))
    assert grpo(inputs, PLAIN).advantages.dtype == torch.float32
