"""Penalties of length, and rewards that move to tokens that count."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.reward_shaping import overlong_penalty, settle_rewards


def test_a_response_pays_for_the_tokens_in_the_buffer() -> None:
    lengths = torch.tensor([0, 6, 7, 9, 10, 12])
    penalties = overlong_penalty(lengths, max_new_tokens=10, buffer=4, penalty=0.5)
    assert penalties.tolist() == [0.0, 0.0, 0.125, 0.375, 0.5, 0.5]


def test_without_a_buffer_nothing_is_lost() -> None:
    assert overlong_penalty(torch.tensor([1, 10]), max_new_tokens=10, buffer=0, penalty=1.0).tolist() == [0.0, 0.0]


def test_a_reward_at_a_token_that_does_not_count_goes_to_the_last_before_it_or_to_the_first() -> None:
    mask = torch.tensor([[False, True, False, True, False], [False] * 5])
    rewards = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]] * 2)
    assert settle_rewards(rewards, mask).tolist() == [[0, 7, 0, 24, 0], [0] * 5]


@given(st.lists(st.tuples(st.booleans(), st.integers(-8, 8)), min_size=1, max_size=12))
def test_no_reward_is_lost_where_any_token_counts(tokens: list[tuple[bool, int]]) -> None:
    mask = torch.tensor([[counts for counts, _ in tokens]])
    rewards = torch.tensor([[float(reward) for _, reward in tokens]])
    settled = settle_rewards(rewards, mask)
    assert settled.sum() == (rewards.sum() if mask.any() else 0)
    assert not settled[~mask].any()
