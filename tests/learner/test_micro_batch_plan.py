"""Plans have every sequence once, stay in the budget, and are of one length for all shards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.micro_batch_plan import MicroBatchPlan, MicroBatchPlanner, Sequences
from tests.learner.bigram_backend import FLOPS

Shards = list[list[Sequences]]


def planner(max_tokens: int, *, shares_prefixes: bool = True, multiple_of: int = 1) -> MicroBatchPlanner:
    return MicroBatchPlanner(
        max_tokens=max_tokens, shares_prefixes=shares_prefixes, multiple_of=multiple_of, flops=FLOPS
    )


@st.composite
def shards(draw: st.DrawFn) -> Shards:
    """Of groups whose sequences are numbered through."""
    index, dealt = 0, []
    for _ in range(draw(st.integers(1, 4))):
        groups = []
        for lengths in draw(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), max_size=5)):
            groups.append(Sequences(draw(st.integers(1, 30)), {index + i: n for i, n in enumerate(lengths)}))
            index += len(lengths)
        dealt.append(groups)
    return dealt


def num_tokens(groups: list[Sequences], indices: list[int], *, shares_prefixes: bool) -> int:
    own = [(group.prompt, [group.responses[i] for i in indices if i in group.responses]) for group in groups]
    return sum(prompt * (1 if shares_prefixes else len(r)) + sum(r) for prompt, r in own if r)


@pytest.mark.parametrize("shares_prefixes", [True, False])
@given(shards(), st.integers(1, 90), st.integers(1, 3))
def test_every_sequence_goes_into_one_micro_batch_within_the_budget(
    shares_prefixes: bool, dealt: Shards, max_tokens: int, multiple_of: int
) -> None:
    plan = planner(max_tokens, shares_prefixes=shares_prefixes, multiple_of=multiple_of).plan(dealt)
    assert len({len(own) for own in plan.shards}) == 1
    assert len(plan.shards[0]) % multiple_of == 0
    for groups, own in zip(dealt, plan.shards, strict=True):
        assert sorted(i for part in own for i in part) == sorted(i for group in groups for i in group.responses)
        tokens = [num_tokens(groups, part, shares_prefixes=shares_prefixes) for part in own]
        assert all(n <= max_tokens or len(part) == 1 for n, part in zip(tokens, own, strict=True))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(41, 90))
def test_micro_batches_are_more_than_half_full_on_average(lengths: list[int], max_tokens: int) -> None:
    plan = planner(max_tokens).plan([[Sequences(1, {i: length - 1}) for i, length in enumerate(lengths)]])
    assert len(plan.shards[0]) < 2 * sum(lengths) / max_tokens + 1


def test_costs_are_those_of_the_micro_batches_and_the_costliest_comes_first() -> None:
    plan = planner(40).plan([[Sequences(10, {0: 20, 1: 5}), Sequences(10, {2: 7})], [Sequences(10, {3: 20, 4: 20})]])
    assert plan.shards == [[[0, 1], [2]], [[3], [4]]]
    assert [costs[0] >= costs[1] for costs in plan.costs] == [True, True]
    assert plan.loads == [sum(costs) for costs in plan.costs]
    first = 100 * 35 + 10 * 25 + 55 + (200 + 210) + (50 + 15)
    assert plan.costs[0][0] == first


def test_a_group_that_does_not_fit_is_cut_and_takes_its_prompt_along() -> None:
    plan = planner(30).plan([[Sequences(10, {0: 10, 1: 10, 2: 10, 3: 10})]])
    assert plan.shards == [[[0, 1], [2, 3]]]


def test_a_shard_with_too_little_gets_micro_batches_without_a_sequence() -> None:
    plan = planner(10).plan([[Sequences(1, {0: 9}), Sequences(1, {1: 9})], [Sequences(1, {2: 3})], []])
    assert plan.shards == [[[0], [1]], [[2], []], [[], []]]
    assert plan.costs[2] == [0, 0]


def test_room_that_is_left_makes_micro_batches_even() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(4, 0.6, 256).astype(int).tolist()

    def one_by_one(planner_: MicroBatchPlanner) -> MicroBatchPlan:
        return planner_.plan([[Sequences(8, {i: n}) for i, n in enumerate(lengths)]])

    plan = one_by_one(planner(1024))
    fewest = sum(lengths) / 1024
    assert len(plan.shards[0]) <= 1.1 * fewest + 2
    assert plan.imbalance < 1.1
