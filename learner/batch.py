"""A batch as the learner sees it: sequences, and what is known of each of their tokens.

Owns the way from trajectory groups to aligned per-token arrays, and the parts (mini-batches) that share an
optimizer step. Everything of a token stands at its own index: logprobs[t] is of token t, and a prompt's tokens are
masked. Knows no model.

Legend: N trajectories of the batch, P prompt tokens, R response tokens, L = P + R.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from async_rl.protocol import Batch, BoolArray, FinishReason, Float32Array, Int32Array, Trajectory, TrajectoryGroup
from learner.packing import PackedSequences, plan_micro_batches

Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True, kw_only=True)
class TrainingSequence:
    """One trajectory behind its prompt; arrays [L]."""

    token_ids: Int32Array
    mask: BoolArray
    """Tokens that train."""
    rollout_logprobs: Float32Array
    """log μ; 0 on the prompt."""
    staleness: Int32Array
    """Versions between the weights that sampled a token and the batch's; 0 on the prompt."""
    num_masked: int
    """The policy's own tokens that are too old to train (`staleness.over_bound=mask`)."""
    is_counted: bool
    """Whether its reward counts in the group's baseline: not that of a trajectory without tokens of its own."""
    group: int
    """Index of the group in the batch."""
    reward: float
    finish_reason: FinishReason
    task: str
    response_length: int
    """R"""


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """The sequences of one batch."""

    version: int
    sequences: list[TrainingSequence]
    num_groups: int

    @classmethod
    def build(cls, batch: Batch, *, mask_above: int | None) -> Self:
        """Lays out a batch.

        Args:
            batch: as it came from the controller.
            mask_above: tokens with more staleness do not train, their trajectory's reward still counts
                (`staleness.over_bound=mask`); None trains all.
        """
        sequences = [
            _lay_out(group, index, trajectory, batch.version, mask_above)
            for index, group in enumerate(batch.groups)
            for trajectory in group.trajectories
        ]
        return cls(version=batch.version, sequences=sequences, num_groups=len(batch.groups))

    @property
    def rewards(self) -> torch.Tensor:
        """[N] float32."""
        return torch.tensor([s.reward for s in self.sequences], dtype=torch.float32)

    @property
    def groups(self) -> torch.Tensor:
        """[N] int64: index of each trajectory's group."""
        return torch.tensor([s.group for s in self.sequences], dtype=torch.int64)

    @property
    def counted(self) -> torch.Tensor:
        """[N] bool: whose reward counts in its group's baseline."""
        return torch.tensor([s.is_counted for s in self.sequences], dtype=torch.bool)

    @cached_property
    def num_trained_tokens(self) -> int:
        """Tokens inside the mask."""
        return sum(int(s.mask.sum()) for s in self.sequences)

    @property
    def num_masked_tokens(self) -> int:
        """The policy's own tokens that are too old to train."""
        return sum(s.num_masked for s in self.sequences)

    @cached_property
    def trained_staleness(self) -> Int32Array:
        """Of every token that trains, in order; may be empty."""
        return self.over_mask(s.staleness for s in self.sequences)

    def over_mask(self, values: Iterable[npt.NDArray[Value]]) -> npt.NDArray[Value]:
        """One array [L] a sequence to the values of the tokens that train, in order."""
        return np.concatenate([v[s.mask] for v, s in zip(values, self.sequences, strict=True)])

    def mini_batches(self, count: int) -> list[list[int]]:
        """Sequence indices of `count` parts with the same number of groups, whole groups together."""
        assert self.num_groups % count == 0, (self.num_groups, count)
        per_part = self.num_groups // count
        return [
            [i for i, s in enumerate(self.sequences) if part * per_part <= s.group < (part + 1) * per_part]
            for part in range(count)
        ]


def _lay_out(
    group: TrajectoryGroup, index: int, trajectory: Trajectory, version: int, mask_above: int | None
) -> TrainingSequence:
    prompt = np.asarray(group.prompt_token_ids, np.int32)
    staleness = version - trajectory.weight_versions
    mask = trajectory.loss_mask.copy()
    if mask_above is not None:
        mask &= staleness <= mask_above
    return TrainingSequence(
        token_ids=np.concatenate([prompt, trajectory.token_ids]),
        mask=_behind(prompt, mask),
        rollout_logprobs=_behind(prompt, trajectory.rollout_logprobs),
        staleness=_behind(prompt, staleness),
        num_masked=int(trajectory.loss_mask.sum() - mask.sum()),
        is_counted=bool(trajectory.loss_mask.any()),
        group=index,
        reward=trajectory.reward,
        finish_reason=trajectory.finish_reason,
        task=group.task,
        response_length=trajectory.num_tokens,
    )


def _behind(prompt: Int32Array, values: npt.NDArray[Value]) -> npt.NDArray[Value]:
    return np.concatenate([np.zeros(len(prompt), values.dtype), values])


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Some sequences of a batch, packed."""

    indices: list[int]
    """Which of the batch's sequences, in the order in which they are packed."""
    packed: PackedSequences

    def pack(self, values: Sequence[npt.ArrayLike], dtype: torch.dtype) -> torch.Tensor:
        """Picks its sequences from one array [L] for each of the batch's, and packs them to [T]."""
        return self.packed.pack_values([values[i] for i in self.indices], dtype)


def pack_micro_batches(batch: TrainingBatch, indices: Sequence[int], max_tokens: int) -> list[MicroBatch]:
    """Packs these sequences of the batch under a token budget."""
    lengths = [len(batch.sequences[i].token_ids) for i in indices]
    plan = [[indices[i] for i in part] for part in plan_micro_batches(lengths, max_tokens)]
    return [
        MicroBatch(indices=part, packed=PackedSequences.pack([batch.sequences[i].token_ids for i in part]))
        for part in plan
    ]
