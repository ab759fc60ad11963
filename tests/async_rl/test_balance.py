"""Shares are even, have everything once, and are the same for the same numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_rl.balance import EVEN, GroupLengths, cut_group, group_cost, imbalance, share_out
from async_rl.sizing.flops import ModelFlops

FLOPS = ModelFlops(per_token=1000, per_scored_token=100, per_pair=1)


def largest(costs: list[float], shares: list[list[int]]) -> float:
    return max(sum(costs[i] for i in share) for share in shares)


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_everything_is_in_one_share_and_no_share_is_much_above_the_others(costs: list[int], num_shares: int) -> None:
    shares = share_out(costs, num_shares)
    assert len(shares) == num_shares
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    assert share_out(costs, num_shares) == shares
    if costs:
        # Graham's bound of the greedy rule.
        assert largest(list(costs), shares) <= sum(costs) / num_shares + max(costs) * (1 - 1 / num_shares) + 1e-6


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(2, 3))
def test_shares_are_near_the_best_that_there_are(costs: list[int], num_shares: int) -> None:
    best = min(
        max(np.bincount(places, costs, num_shares))
        for places in itertools.product(range(num_shares), repeat=len(costs))
    )
    assert largest(list(costs), share_out(costs, num_shares)) <= best * (4 / 3 - 1 / (3 * num_shares)) + 1e-9


@pytest.mark.parametrize(("costs", "num_shares", "best"), [
    # Greed leaves 8 + 5 + 4 against 7 + 6, which exchanges even.
    ([8.0, 7.0, 6.0, 5.0, 4.0], 2, 15.0),
    # Greed leaves 17 that no exchange mends; differences find 9 + 6, 9 + 5 + 1 and 7 + 4 + 4.
    ([9.0, 9.0, 7.0, 6.0, 5.0, 4.0, 4.0, 1.0], 3, 15.0),
])  # fmt: skip
def test_what_greed_leaves_uneven_is_evened(costs: list[float], num_shares: int, best: float) -> None:
    assert largest(costs, share_out(costs, num_shares)) == best


@pytest.mark.parametrize("num_shares", [8, 64, 256])
def test_many_sequences_of_uneven_length_are_shared_out_evenly(num_shares: int) -> None:
    lengths = np.random.default_rng(0).lognormal(6.5, 0.8, 4096).clip(16, 8192).astype(int).tolist()
    costs = [group_cost(GroupLengths(64, [length]), FLOPS) for length in lengths]
    shares = share_out(costs, num_shares)
    least = max(costs) / sum(costs) * num_shares
    assert imbalance([sum(costs[i] for i in share) for share in shares]) <= max(1.0, least) * EVEN


def test_a_prompt_costs_once_and_each_response_attends_to_it() -> None:
    pairs = 10 * 11 // 2 + (3 * 10 + 3 * 4 // 2) + (2 * 10 + 2 * 3 // 2)
    assert group_cost(GroupLengths(10, [3, 2]), FLOPS) == 1000 * 15 + 100 * 5 + pairs


def test_a_group_is_cut_into_even_parts_none_of_them_empty() -> None:
    group = GroupLengths(10, [100, 90, 10, 20])
    assert cut_group(group, FLOPS, 2) == [[0, 2], [1, 3]]
    assert sorted(cut_group(group, FLOPS, 9)) == [[0], [1], [2], [3]]


def test_nothing_is_even() -> None:
    assert imbalance([]) == imbalance([0.0, 0.0]) == 1.0
    assert imbalance([3.0, 1.0]) == 1.5
