"""Sequences to packed micro-batches and back: every value stays at its token, whoever shares a prompt."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_rl.protocol import Batch
from learner.batch import TrainingBatch
from learner.micro_batch_plan import MicroBatchPlanner
from learner.mini_batch import MicroBatch, MiniBatch
from tests.learner.bigram_backend import FLOPS
from tests.learner.groups import make_group, make_trajectory, random_batch


def planner(max_tokens: int, *, shares_prefixes: bool = True) -> MicroBatchPlanner:
    return MicroBatchPlanner(max_tokens=max_tokens, shares_prefixes=shares_prefixes, multiple_of=1, flops=FLOPS)


def laid_out(batch: Batch) -> TrainingBatch:
    return TrainingBatch.build(batch, mask_above=None)


@pytest.mark.parametrize("shares_prefixes", [True, False])
@given(st.integers(0, 1000), st.integers(1, 60))
def test_packing_and_back_keeps_every_value_at_its_token(shares_prefixes: bool, seed: int, max_tokens: int) -> None:
    batch = laid_out(random_batch(num_groups=3, group_size=3, seed=seed))
    micro_batches = MiniBatch.pack(batch, range(9), planner(max_tokens, shares_prefixes=shares_prefixes)).micro_batches
    assert sorted(i for m in micro_batches for i in m.indices) == list(range(9))
    rows = torch.full(batch.shape, -1)
    for m in micro_batches:
        assert m.packed.num_tokens <= max_tokens or len(m.indices) == 1
        m.put(rows, m.packed.labels)
        own, mask = m.rows_of(m.packed.labels), m.pick(batch.sampled)
        assert torch.equal(own[mask], m.pick(rows)[mask])
    for row, sequence in zip(rows, batch.sequences, strict=True):
        assert sequence.token_ids is not None
        response = sequence.token_ids[-sequence.response_length :]
        np.testing.assert_array_equal(row[: sequence.response_length].numpy(), response)


def test_rows_of_a_micro_batch_carry_gradients_to_their_tokens_alone() -> None:
    first, second = make_trajectory([5, 6, 7]), make_trajectory([8, 9], loss_mask=[True, False])
    groups = [make_group(7, [1, 2], [first, second]), make_group(9, [4], [make_trajectory([3])])]
    batch = laid_out(Batch.whole(version=0, groups=groups))
    (m,) = MiniBatch.pack(batch, range(3), planner(100)).micro_batches
    assert m.packed.token_ids.tolist() == [1, 2, 5, 6, 7, 8, 9, 4, 3]
    values = torch.arange(float(m.packed.num_scored_tokens), requires_grad=True)
    m.rows_of(values)[m.pick(batch.mask)].sum().backward()
    assert values.grad is not None
    # Response; sampled and environment; response.
    assert values.grad.tolist() == [1, 1, 1, 1, 0, 1]


def test_a_shared_prompt_stands_once_in_a_micro_batch() -> None:
    batch = laid_out(random_batch(num_groups=2, group_size=4))
    prompts = [s.prompt_length for s in batch.sequences]
    responses = sum(s.response_length for s in batch.sequences)
    num_tokens = {
        shares: sum(m.packed.num_tokens for m in MiniBatch.pack(batch, range(8), packing).micro_batches)
        for shares, packing in ((s, planner(1000, shares_prefixes=s)) for s in (True, False))
    }
    assert num_tokens == {True: responses + prompts[0] + prompts[4], False: responses + sum(prompts)}


def test_without_a_sequence_one_token_is_packed_that_nothing_is_scored_by() -> None:
    m = MicroBatch.pack(laid_out(random_batch(num_groups=1, group_size=2)), [], shares_prefixes=True)
    assert (m.packed.num_tokens, m.packed.num_scored_tokens, m.width) == (1, 0, 0)
    rows = torch.ones(2, 9)
    m.put(rows, torch.zeros(0))
    assert m.rows_of(torch.zeros(0)).shape == m.pick(rows).shape == (0, 0)
    assert rows.eq(1).all()
