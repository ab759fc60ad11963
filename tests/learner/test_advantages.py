"""Group-relative advantages: golden vectors, a plain loop, and who counts in a baseline."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.advantages import EPS, grpo
from tests.golden import Golden, golden_cases, golden_differences

NAMES = ("grpo", "grpo_vectorized")
CASES = [*golden_cases("advantage", *NAMES), *golden_differences("advantage", *NAMES)]

samples = st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100), st.booleans()), min_size=1, max_size=24)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_grpo_is_golden(case: Golden) -> None:
    mask, groups = case.input("mask"), case.input("groups").long()
    rewards = torch.where(mask, case.input("rewards"), 0.0).sum(1)
    labels = torch.unique(groups, return_inverse=True)[1]
    got = grpo(rewards, labels, mask.any(1), case.options["norm_by_std"])
    assert case.options.get("eps", EPS) == EPS
    case.check("advantages", got[:, None] * mask)


def test_there_are_golden_cases() -> None:
    assert len(CASES) == 15


@given(samples, st.booleans())
def test_grpo_equals_a_plain_loop(row: list[tuple[int, float, bool]], normalize: bool) -> None:
    groups = torch.tensor([g for g, *_ in row]).clamp(max=len(row) - 1)
    counted = torch.tensor([kept for *_, kept in row])
    rewards = torch.tensor([r if kept else math.nan for _, r, kept in row], dtype=torch.float64)
    got = grpo(rewards, groups, counted, normalize)
    for i, (_, reward, kept) in enumerate(row):
        peers = [row[j][1] for j in range(len(row)) if groups[j] == groups[i] and row[j][2]]
        expected = 0.0
        if kept and len(peers) == 1:
            expected = reward
        elif kept:
            expected = reward - math.fsum(peers) / len(peers)
            expected /= statistics.stdev(peers) + EPS if normalize else 1.0
        assert float(got[i]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_two_right_of_four() -> None:
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    everyone = torch.ones(4, dtype=torch.bool)
    groups = torch.zeros(4, dtype=torch.int64)
    assert grpo(rewards, groups, everyone, False).tolist() == [0.5, -0.5, 0.5, -0.5]
    assert grpo(rewards, groups, everyone, True).tolist() == pytest.approx([0.8660, -0.8660, 0.8660, -0.8660], abs=1e-4)


@given(st.floats(-1e6, 1e6), st.integers(2, 9), st.booleans())
def test_equal_rewards_give_exactly_nothing(reward: float, size: int, normalize: bool) -> None:
    rewards, groups = torch.full((size,), reward), torch.zeros(size, dtype=torch.int64)
    assert grpo(rewards, groups, torch.ones(size, dtype=torch.bool), normalize).tolist() == [0.0] * size


def test_a_trajectory_that_does_not_count_sets_no_baseline() -> None:
    rewards, groups = torch.tensor([9.0, 1.0, 0.0]), torch.zeros(3, dtype=torch.int64)
    counted = torch.tensor([False, True, True])
    assert grpo(rewards, groups, counted, False).tolist() == [0.0, 0.5, -0.5]


def test_nobody_counts() -> None:
    rewards, groups = torch.tensor([math.nan, 1.0]), torch.zeros(2, dtype=torch.int64)
    assert grpo(rewards, groups, torch.zeros(2, dtype=torch.bool), True).tolist() == [0.0, 0.0]
