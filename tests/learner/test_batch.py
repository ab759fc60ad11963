"""Groups to sequences: every per-token array lines up with its tokens, and masks mean what they say."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_rl.protocol import Batch
from learner.batch import TrainingBatch, pack_micro_batches
from tests.learner.groups import make_group, make_trajectory, random_batch


def two_groups() -> Batch:
    first = make_trajectory([5, 6, 7], reward=1.0, versions=[1, 1, 3], rollout_logprobs=[-0.1, -0.2, -0.3])
    second = make_trajectory([8, 9], versions=[4, 4], loss_mask=[True, False])
    third = make_trajectory([3], reward=0.5, versions=[0])
    return Batch(version=4, groups=[make_group(7, [1, 2], [first, second], "a"), make_group(9, [4], [third], "b")])


def test_a_sequence_is_its_prompt_and_its_response_with_everything_at_its_token() -> None:
    sequence = TrainingBatch.build(two_groups(), mask_above=None).sequences[0]
    assert sequence.token_ids.tolist() == [1, 2, 5, 6, 7]
    assert sequence.mask.tolist() == [False, False, True, True, True]
    assert sequence.rollout_logprobs.tolist() == pytest.approx([0, 0, -0.1, -0.2, -0.3])
    assert sequence.staleness.tolist() == [0, 0, 3, 3, 1]
    assert (sequence.group, sequence.reward, sequence.task, sequence.response_length) == (0, 1.0, "a", 3)


def test_tokens_of_an_environment_do_not_train() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=None)
    assert batch.sequences[1].mask.tolist() == [False, False, True, False]
    assert batch.num_trained_tokens == 5
    assert batch.trained_staleness.tolist() == [3, 3, 1, 0, 4]


def test_masking_by_staleness_keeps_the_reward_in_the_baseline() -> None:
    batch = TrainingBatch.build(two_groups(), mask_above=2)
    assert [s.mask.tolist()[-s.response_length :] for s in batch.sequences] == [
        [False, False, True],
        [True, False],
        [False],
    ]
    assert batch.counted.tolist() == [True, True, True]
    assert batch.trained_staleness.max() <= 2


def test_a_trajectory_without_tokens_of_its_own_is_not_counted() -> None:
    group = make_group(0, [1], [make_trajectory([2, 3], loss_mask=[False, False]), make_trajectory([2])])
    assert TrainingBatch.build(Batch(version=0, groups=[group]), mask_above=None).counted.tolist() == [False, True]


def test_mini_batches_keep_groups_whole_and_take_each_sequence_once() -> None:
    batch = TrainingBatch.build(random_batch(num_groups=6, group_size=3), mask_above=None)
    parts = batch.mini_batches(3)
    assert sorted(i for part in parts for i in part) == list(range(18))
    assert [sorted({batch.sequences[i].group for i in part}) for part in parts] == [[0, 1], [2, 3], [4, 5]]


@given(st.integers(0, 1000), st.integers(1, 60))
def test_packing_keeps_every_value_at_its_token(seed: int, max_tokens: int) -> None:
    batch = TrainingBatch.build(random_batch(num_groups=3, group_size=3, seed=seed), mask_above=None)
    micro_batches = pack_micro_batches(batch, range(9), max_tokens)
    assert sorted(i for m in micro_batches for i in m.indices) == list(range(9))
    for m in micro_batches:
        assert m.packed.num_tokens <= max_tokens or len(m.indices) == 1
        tokens = m.pack([s.token_ids for s in batch.sequences], torch.int64)
        assert torch.equal(tokens, m.packed.token_ids)
        logprobs = m.pack([s.rollout_logprobs for s in batch.sequences], torch.float32)
        for index, values in zip(m.indices, m.packed.unpack(logprobs), strict=True):
            np.testing.assert_array_equal(values.numpy(), batch.sequences[index].rollout_logprobs)
