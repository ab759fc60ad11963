"""Groups to sequences: every per-token array lines up with its tokens, and masks mean what they say."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_rl.protocol import Batch
from learner.batch import MiniBatch, TrainingBatch
from tests.learner.groups import make_group, make_trajectory, random_batch


def two_groups() -> Batch:
    first = make_trajectory([5, 6, 7], reward=1.0, versions=[1, 1, 3], rollout_logprobs=[-0.1, -0.2, -0.3])
    second = make_trajectory([8, 9], versions=[4, 4], loss_mask=[True, False])
    third = make_trajectory([3], reward=0.5, versions=[0])
    return Batch(version=4, groups=[make_group(7, [1, 2], [first, second], "a"), make_group(9, [4], [third], "b")])


def test_rows_hold_what_is_known_of_each_response_token() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=None)
    assert batch.sequences[0].token_ids.tolist() == [1, 2, 5, 6, 7]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False], [True, False, False]]
    assert batch.rollout_logprobs[0].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert batch.staleness.tolist() == [[3, 3, 1], [0, 0, 0], [4, 0, 0]]
    assert batch.token_rewards.tolist() == [[0, 0, 1], [0, 0, 0], [0.5, 0, 0]]
    first = batch.sequences[0]
    assert (first.group, first.reward, first.task, first.response_length) == (0, 1.0, "a", 3)
    assert batch.groups.tolist() == [0, 0, 1]


def test_tokens_of_an_environment_do_not_train() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=None)
    assert batch.sampled[1].tolist() == [True, False, False]
    assert batch.num_trained_tokens == 5
    assert batch.trained_staleness.tolist() == [3, 3, 1, 0, 4]


def test_masking_by_staleness_leaves_what_was_sampled() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=2)
    assert batch.mask.tolist() == [[False, False, True], [True, False, False], [False, False, False]]
    assert batch.sampled.sum() == 5 and batch.num_masked_tokens == 3
    assert batch.trained_staleness.max() <= 2


def test_rewards_by_token_by_name_and_of_the_greedy_answer_come_along() -> None:
    trajectories = [make_trajectory([2, 3], components=[1.0, 0.5]), make_trajectory([2], components=[0.0, 0.25])]
    with_tokens = msgspec.structs.replace(
        trajectories[0], token_reward_bytes=memoryview(np.array([0.25, -1.0], "<f4").tobytes())
    )
    group = make_group(0, [1], [with_tokens, trajectories[1]], baseline_reward=0.75)
    batch = TrainingBatch.build(Batch(version=0, groups=[group]), mask_above=None)
    assert batch.token_rewards.tolist() == [[0.25, -1.0], [0.0, 0.0]]
    assert batch.component_rewards.tolist() == [[1.0, 0.5], [0.0, 0.25]]
    assert batch.baseline_rewards is not None and batch.baseline_rewards.tolist() == [0.75, 0.75]


def test_bonuses_stand_at_the_last_token_of_each_response() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=None)
    rewards = batch.rewards_with(torch.tensor([-1.0, -2.0, 0.0]))
    assert rewards.tolist() == [[0, 0, 0], [0, -2, 0], [0.5, 0, 0]]


def test_mini_batches_keep_groups_whole_and_take_each_sequence_once() -> None:
    batch = TrainingBatch.build(random_batch(num_groups=6, group_size=3), mask_above=None)
    parts = batch.mini_batches(3)
    assert sorted(i for part in parts for i in part) == list(range(18))
    assert [sorted({batch.sequences[i].group for i in part}) for part in parts] == [[0, 1], [2, 3], [4, 5]]


@given(st.integers(0, 1000), st.integers(1, 60))
def test_packing_and_back_keeps_every_value_at_its_token(seed: int, max_tokens: int) -> None:
    batch = TrainingBatch.build(random_batch(num_groups=3, group_size=3, seed=seed), mask_above=None)
    micro_batches = MiniBatch.pack(batch, range(9), max_tokens).micro_batches
    assert sorted(i for m in micro_batches for i in m.indices) == list(range(9))
    rows = torch.full(batch.shape, -1)
    for m in micro_batches:
        assert m.packed.num_tokens <= max_tokens or len(m.indices) == 1
        m.put(rows, m.packed.labels)
        own, mask = m.rows_of(m.packed.labels), m.pick(batch.sampled)
        assert torch.equal(own[mask], m.pick(rows)[mask])
    for row, sequence in zip(rows, batch.sequences, strict=True):
        response = sequence.token_ids[-sequence.response_length :]
        np.testing.assert_array_equal(row[: sequence.response_length].numpy(), response)


def test_rows_of_a_micro_batch_carry_gradients_to_their_tokens_alone() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=None)
    (m,) = MiniBatch.pack(batch, range(3), 100).micro_batches
    values = torch.arange(float(m.packed.num_scored_tokens), requires_grad=True)
    m.rows_of(values)[m.pick(batch.mask)].sum().backward()
    assert values.grad is not None
    # Response; sampled and environment; response.
    assert values.grad.tolist() == [1, 1, 1, 1, 0, 1]
