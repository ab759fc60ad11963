"""A step's examples as micro-batches: each shard's part, as many on every rank.

Owns what a micro-batch of examples is, and their way to shards of even cost, which changes no number of the step. Pure:
ranks that see the same examples plan the same without a word to each other.

Legend: M scored tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from async_rl.balance import GroupLengths, group_cost, share_out
from async_rl.data.example_set import Example
from learner.micro_batch_plan import MicroBatchPlanner, Sequences
from learner.packing import PackedSequences


@dataclass(frozen=True, kw_only=True)
class ExampleMicroBatch:
    """Examples that go through the model together."""

    packed: PackedSequences
    """Scored from each example's first learned token on."""
    learned: Tensor
    """[M] bool: of the scored tokens those that are learned."""

    @classmethod
    def of(cls, examples: Sequence[Example]) -> "ExampleMicroBatch":
        """Lays examples end to end; of none, one token of which nothing is learned."""
        if not examples:
            return cls(packed=PackedSequences.pack([[0]], [0]), learned=torch.zeros(0, dtype=torch.bool))
        masks = [example.learned[len(example) - example.num_scored :] for example in examples]
        return cls(
            packed=PackedSequences.pack([e.token_ids for e in examples], [e.num_scored for e in examples]),
            learned=torch.from_numpy(np.concatenate(masks)),
        )


@dataclass(frozen=True, kw_only=True)
class ShardBatch:
    """One shard's part of some examples."""

    micro_batches: list[ExampleMicroBatch]
    imbalance: float
    """Of the micro-batches of all shards: the costliest over the mean."""

    @classmethod
    def deal(
        cls, examples: Sequence[Example], planner: MicroBatchPlanner, *, shard: int, num_shards: int
    ) -> "ShardBatch":
        """Deals examples to all shards, and takes one's."""
        units = [Sequences(len(e) - e.num_scored, {i: e.num_scored}) for i, e in enumerate(examples)]
        costs = [group_cost(GroupLengths(u.prompt, list(u.responses.values())), planner.flops) for u in units]
        plan = planner.plan([[units[i] for i in share] for share in share_out(costs, num_shards)])
        parts = [[examples[i] for i in part] for part in plan.shards[shard]]
        return cls(micro_batches=[ExampleMicroBatch.of(part) for part in parts], imbalance=plan.imbalance)
