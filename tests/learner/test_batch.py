"""Groups to sequences: every per-token array lines up with its tokens, and masks mean what they say."""

import msgspec
import numpy as np
import pytest
import torch

from async_rl.protocol import Batch
from learner.batch import TrainingBatch
from tests.learner.groups import make_group, make_trajectory, random_batch


def two_groups() -> Batch:
    first = make_trajectory([5, 6, 7], reward=1.0, versions=[1, 1, 3], rollout_logprobs=[-0.1, -0.2, -0.3])
    second = make_trajectory([8, 9], versions=[4, 4], loss_mask=[True, False])
    third = make_trajectory([3], reward=0.5, versions=[0])
    return Batch.whole(
        version=4, groups=[make_group(7, [1, 2], [first, second], "a"), make_group(9, [4], [third], "b")]
    )


def test_rows_hold_what_is_known_of_each_response_token() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=None)
    assert batch.sequences[0].token_ids is not None and batch.sequences[0].token_ids.tolist() == [1, 2, 5, 6, 7]
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
    batch = TrainingBatch.build(Batch.whole(version=0, groups=[group]), mask_above=None)
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
