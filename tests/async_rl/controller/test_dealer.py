"""Dealing: every trajectory to one shard, shards even, and a group whole where that costs nobody time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_rl.balance import GroupLengths, group_cost, imbalance
from async_rl.controller.dealer import Dealer
from async_rl.protocol import FinishReason, Trajectory, TrajectoryGroup, VersionSpan
from async_rl.sizing.flops import ModelFlops

FLOPS = ModelFlops(per_token=1000, per_scored_token=100, per_pair=1)
RESPONSES = st.lists(st.integers(0, 500), min_size=1, max_size=8).filter(any)
SIZES = st.tuples(st.integers(1, 300), RESPONSES)


def make_group(prompt: int, responses: list[int]) -> TrajectoryGroup:
    """Of these lengths."""
    return TrajectoryGroup(
        group_id=0,
        attempt=0,
        incarnation="g",
        prompt_id=0,
        task="",
        prompt_token_ids=[1] * prompt,
        trajectories=[
            Trajectory.build(
                token_ids=[2] * n,
                rollout_logprobs=[-1.0] * n,
                spans=[VersionSpan(version=0, start=0, end=n)] if n else [],
                reward=0.0,
                finish_reason=FinishReason.STOP,
            )
            for n in responses
        ],
    )


def dealer(num_shards: int, *, mini_batches: int = 1, shares_prefixes: bool = True) -> Dealer:
    return Dealer(num_shards=num_shards, mini_batches=mini_batches, shares_prefixes=shares_prefixes, flops=FLOPS)


def loads(groups: list[TrajectoryGroup], shards: list[list[int]], num_shards: int) -> list[int]:
    """Cost by shard, a prompt once on each that has any of its responses."""
    sums = [0] * num_shards
    for group, takers in zip(groups, shards, strict=True):
        for shard in set(takers):
            lengths = [t.num_tokens for t, taker in zip(group.trajectories, takers, strict=True) if taker == shard]
            sums[shard] += group_cost(GroupLengths(len(group.prompt_token_ids), lengths), FLOPS)
    return sums


def test_one_shard_gets_all() -> None:
    assert dealer(1).deal([make_group(3, [1, 2]), make_group(3, [4])]) == [[0, 0], [0]]


def test_groups_of_one_kind_stay_whole() -> None:
    groups = [make_group(100, [20] * 4) for _ in range(8)]
    shards = dealer(4).deal(groups)
    assert all(len(set(takers)) == 1 for takers in shards)
    assert sorted(takers[0] for takers in shards) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_group_that_would_keep_all_others_waiting_is_cut_and_no_other() -> None:
    groups = [make_group(10, [400] * 4), *(make_group(10, [50] * 4) for _ in range(8))]
    shards = dealer(2).deal(groups)
    assert len(set(shards[0])) == 2
    assert all(len(set(takers)) == 1 for takers in shards[1:])
    assert imbalance(loads(groups, shards, 2)) < 1.02


def test_a_group_stays_whole_where_its_prompt_is_dearer_than_waiting() -> None:
    groups = [make_group(10_000, [50] * 4) for _ in range(3)]
    shards = dealer(2).deal(groups)
    assert [len(set(takers)) for takers in shards].count(2) <= 1


def test_prompts_that_are_not_shared_keep_no_group_together() -> None:
    groups = [make_group(10, [400, 10, 10, 10]), make_group(10, [400, 10, 10, 10])]
    shards = dealer(2, shares_prefixes=False).deal(groups)
    assert shards[0][0] != shards[1][0]


def test_each_mini_batch_is_dealt_by_itself() -> None:
    groups = [make_group(10, [400] * 2), make_group(10, [100] * 2), make_group(10, [300] * 2), make_group(10, [50] * 2)]
    shards = dealer(2, mini_batches=2).deal(groups)
    for part in (slice(0, 2), slice(2, 4)):
        assert imbalance(loads(groups[part], shards[part], 2)) < 1.4


@pytest.mark.parametrize("shares_prefixes", [True, False])
@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.lists(st.integers(0, 500), min_size=1, max_size=8)).filter(
            lambda g: any(g[1])
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_every_trajectory_has_one_shard_and_cutting_never_makes_the_slowest_slower(
    shares_prefixes: bool, sizes: list[tuple[int, list[int]]], num_shards: int
) -> None:
    groups = [make_group(prompt, responses) for prompt, responses in sizes]
    shards = dealer(num_shards, shares_prefixes=shares_prefixes).deal(groups)
    assert [len(takers) for takers in shards] == [len(group.trajectories) for group in groups]
    assert all(0 <= shard < num_shards for takers in shards for shard in takers)
    costs = [group_cost(GroupLengths(prompt, responses), FLOPS) for prompt, responses in sizes]
    if shares_prefixes:
        # Whole groups, greedily.
        assert max(loads(groups, shards, num_shards)) <= sum(costs) / num_shards + max(costs)
