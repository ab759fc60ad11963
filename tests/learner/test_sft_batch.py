"""A batch is dealt to shards whole, each example once, in as many micro-batches on each."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_rl.config.model_sizes import ModelSizes
from async_rl.data.example_set import Example
from async_rl.sizing.flops import ModelFlops
from learner.micro_batch_plan import MicroBatchPlanner
from learner.sft_batch import ExampleMicroBatch, ShardBatch

SIZES = ModelSizes(
    num_layers=2, hidden_size=32, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=64, vocab_size=50
)


def example(token_ids: list[int], learned: str) -> Example:
    """`learned` has a 1 for each learned token."""
    mask = np.array([mark == "1" for mark in learned])
    return Example(token_ids=np.array(token_ids, dtype=np.int32), learned=mask)


def planner(max_tokens: int) -> MicroBatchPlanner:
    return MicroBatchPlanner(max_tokens=max_tokens, shares_prefixes=False, multiple_of=1, flops=ModelFlops.of(SIZES))


def test_scored_is_what_follows_the_first_learned_token_and_the_mask_is_of_these() -> None:
    batch = ExampleMicroBatch.of([example([3, 4, 5, 6, 7], "00101"), example([8, 9], "01")])
    assert batch.packed.token_ids.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert batch.packed.labels.tolist() == [5, 6, 7, 9]
    assert batch.packed.sources.tolist() == [1, 2, 3, 5]
    assert batch.learned.tolist() == [True, False, True, True]


def test_of_nothing_there_is_a_token_and_nothing_to_score() -> None:
    batch = ExampleMicroBatch.of([])
    assert (batch.packed.num_tokens, batch.packed.num_scored_tokens, batch.learned.shape) == (1, 0, (0,))


@given(
    lengths=st.lists(st.integers(2, 12), min_size=1, max_size=30),
    num_shards=st.integers(1, 4),
    max_tokens=st.integers(12, 40),
)
def test_each_example_is_dealt_once_and_all_shards_have_as_many_micro_batches(
    lengths: list[int], num_shards: int, max_tokens: int
) -> None:
    examples = [example([number] * length, "0" + "1" * (length - 1)) for number, length in enumerate(lengths, 1)]
    shards = [
        ShardBatch.deal(examples, planner(max_tokens), shard=shard, num_shards=num_shards)
        for shard in range(num_shards)
    ]
    assert len({len(batch.micro_batches) for batch in shards}) == 1
    packed = [micro.packed for batch in shards for micro in batch.micro_batches]
    assert all(row.num_tokens <= max_tokens for row in packed)
    tokens = torch.cat([row.token_ids for row in packed])
    assert torch.bincount(tokens, minlength=len(lengths) + 1)[1:].tolist() == lengths
    assert sum(int(micro.learned.sum()) for batch in shards for micro in batch.micro_batches) == sum(lengths) - len(
        lengths
    )
