"""The n-th group's prompt is decided by n and the seed alone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from async_rl.data.sampler import PromptSampler
from async_rl.protocol import Prompt

sizes = st.integers(1, 60)
seeds = st.integers(0, 2**63)


def sampler(size: int, *, seed: int = 0, shuffle: bool = True) -> PromptSampler:
    prompts = [Prompt(prompt_id=i, text=str(i), token_ids=[i], answer="") for i in range(size)]
    return PromptSampler(prompts, seed=seed, shuffle=shuffle)


def ids(of: PromptSampler, groups: range) -> list[int]:
    return [of.prompt(group_id).prompt_id for group_id in groups]


@given(sizes, seeds, st.integers(0, 1000))
def test_every_epoch_issues_each_prompt_once(size: int, seed: int, epoch: int) -> None:
    groups = range(epoch * size, (epoch + 1) * size)
    assert sorted(ids(sampler(size, seed=seed), groups)) == list(range(size))


@given(sizes, seeds, st.lists(st.integers(0, 500), max_size=20))
def test_a_group_asked_for_in_any_order_after_a_restart_has_the_same_prompt(
    size: int, seed: int, groups: list[int]
) -> None:
    straight = ids(sampler(size, seed=seed), range(501))
    restarted = sampler(size, seed=seed)
    assert [restarted.prompt(group_id).prompt_id for group_id in groups] == [straight[g] for g in groups]


def test_without_shuffling_prompts_come_in_their_order() -> None:
    assert ids(sampler(3, shuffle=False), range(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, second = ids(sampler(50), range(50)), ids(sampler(50), range(50, 100))
    assert len({tuple(first), tuple(second), tuple(ids(sampler(50, seed=1), range(50)))}) == 3


def test_the_order_is_the_same_on_every_machine() -> None:
    assert ids(sampler(8, seed=5), range(8)) == [4, 7, 6, 3, 5, 0, 2, 1]


@given(st.integers(2, 5), st.integers(0, 10**6))
def test_counts_never_differ_by_more_than_one(size: int, seed: int) -> None:
    counts = Counter(ids(sampler(size, seed=seed), range(7)))
    assert max(counts.values()) - min(counts.get(i, 0) for i in range(size)) <= 1
