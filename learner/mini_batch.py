"""The part of a batch that shares an optimizer step, packed for the models of this rank.

Owns the way from sequences to packed micro-batches, and from their scores back to rows. Which sequences go together is
planned elsewhere. Knows no model and no objective.

Legend: N trajectories of the batch, T response positions of its longest; S sequences of a micro-batch, T' positions of
its longest, M its scored tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import torch
from torch import Tensor

from async_rl.protocol import Int32Array
from learner.batch import TrainingBatch
from learner.micro_batch_plan import MicroBatchPlan, MicroBatchPlanner, Sequences
from learner.packing import PackedSequences

NO_TOKEN = 0
"""Any that there is: nothing is scored by it."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Some sequences of a batch, packed, and the way from their tokens to rows."""

    indices: list[int]
    """Which of the batch's sequences, in the order in which they are packed; none where a shard has too few, and then
    a token that is not scored is packed in their place."""
    packed: PackedSequences
    places: Tensor
    """[S, T'] int64: which of the M each response position is; 0 behind the response."""

    @classmethod
    def pack(cls, batch: TrainingBatch, indices: Sequence[int], *, shares_prefixes: bool) -> Self:
        """Packs these sequences, in their order in the batch."""
        indices = sorted(indices)
        if not indices:
            nothing = PackedSequences.pack([[NO_TOKEN]], [0])
            return cls(indices=[], packed=nothing, places=torch.zeros(0, 0, dtype=torch.int64))
        responses = batch.response_lengths[indices]
        offsets, starts = torch.arange(int(responses.max())), responses.cumsum(0) - responses
        return cls(
            indices=indices,
            packed=PackedSequences.pack_groups(_groups(batch, indices, shares_prefixes=shares_prefixes)),
            places=torch.where(offsets < responses[:, None], starts[:, None] + offsets, 0),
        )

    @property
    def width(self) -> int:
        """T', the longest response here."""
        return self.places.shape[1]

    def rows_of(self, values: Tensor) -> Tensor:
        """[M] values to [S, T'] rows, with gradient; what lies behind a response is no data."""
        return values[self.places.to(values.device)]

    def pick(self, rows: Tensor) -> Tensor:
        """[N, T] rows of the batch to this micro-batch's [S, T']."""
        return rows[self.indices, : self.width]

    def put(self, rows: Tensor, values: Tensor) -> None:
        """Writes values [M] to the batch's rows [N, T]; what lies behind a response gets no data."""
        rows[self.indices, : self.width] = self.rows_of(values).to(rows)


@dataclass(frozen=True, kw_only=True)
class MiniBatch:
    """Sequences that share an optimizer step, and what this rank does for it."""

    indices: list[int]
    """Which of the batch's sequences, of all shards."""
    micro_batches: list[MicroBatch]
    """Of this rank's shard."""
    plan: MicroBatchPlan

    @classmethod
    def pack(cls, batch: TrainingBatch, indices: Sequence[int], planner: MicroBatchPlanner) -> Self:
        """Packs what this rank has of them."""
        plan = planner.plan([_of_shard(batch, indices, shard) for shard in range(batch.num_shards)])
        own = plan.shards[batch.shard]
        return cls(
            indices=list(indices),
            micro_batches=[MicroBatch.pack(batch, part, shares_prefixes=planner.shares_prefixes) for part in own],
            plan=plan,
        )

    @property
    def packed(self) -> list[PackedSequences]:
        """What a model is given, micro-batch by micro-batch."""
        return [m.packed for m in self.micro_batches]


def _of_shard(batch: TrainingBatch, indices: Sequence[int], shard: int) -> list[Sequences]:
    """Group by group."""
    groups: dict[int, Sequences] = {}
    for index in indices:
        sequence = batch.sequences[index]
        if sequence.shard == shard:
            own = groups.setdefault(sequence.group, Sequences(sequence.prompt_length, {}))
            own.responses[index] = sequence.response_length
    return list(groups.values())


def _groups(
    batch: TrainingBatch, indices: Sequence[int], *, shares_prefixes: bool
) -> list[tuple[Int32Array, list[Int32Array]]]:
    """(prompt, its responses), of each sequence for itself if prompts are not shared."""
    packed = []
    for _, own in groupby(indices, key=lambda i: batch.sequences[i].group if shares_prefixes else i):
        sequences = [batch.sequences[i] for i in own]
        tokens = [s.token_ids for s in sequences if s.token_ids is not None]
        assert len(tokens) == len(sequences), "another shard's"
        prompt = sequences[0].prompt_length
        packed.append((tokens[0][:prompt], [own_tokens[prompt:] for own_tokens in tokens]))
    return packed
