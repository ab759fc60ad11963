"""A batch as the learner sees it: sequences, and rows of what is known of each of their response tokens.

Owns the way from trajectory groups to aligned rows, from a packed micro-batch's tokens to the same rows, and the
parts (mini-batches) that share an optimizer step. Knows no model and no objective.

Legend: N trajectories of the batch, T response positions of its longest, K named rewards; S sequences of a
micro-batch, M its scored tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from async_rl.protocol import Batch, DeliveryKey, FinishReason, Int32Array, Trajectory, TrajectoryGroup
from learner.packing import PackedSequences, plan_micro_batches


@dataclass(frozen=True, kw_only=True)
class TrainingSequence:
    """One trajectory behind its prompt."""

    key: DeliveryKey
    """Of its group."""
    token_ids: Int32Array
    """Prompt and response."""
    response_length: int
    group: int
    """Index of the group in the batch."""
    reward: float
    finish_reason: FinishReason
    task: str


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """The sequences of one batch and their rows; what lies behind a response is 0."""

    version: int
    sequences: list[TrainingSequence]
    num_groups: int
    sampled: Tensor
    """[N, T] bool: the policy sampled this token."""
    mask: Tensor
    """[N, T] bool: tokens that train."""
    rollout_logprobs: Tensor
    """[N, T] float32: log μ."""
    staleness: Tensor
    """[N, T] int32: versions between the weights that sampled a token and the batch's."""
    token_rewards: Tensor
    """[N, T] float32: where a reward stands at a token of its own; else the total, at the last token."""
    component_rewards: Tensor
    """[N, K] float32."""
    baseline_rewards: Tensor | None
    """[N] float32: of the greedy answer to the same prompt; None without ReMax."""

    @classmethod
    def build(cls, batch: Batch, *, mask_above: int | None) -> Self:
        """Lays out a batch.

        Args:
            batch: as it came from the controller.
            mask_above: tokens with more staleness do not train, their trajectory's reward still counts
                (`staleness.over_bound=mask`); None trains all.
        """
        pairs = [(index, group, t) for index, group in enumerate(batch.groups) for t in group.trajectories]
        trajectories = [t for _, _, t in pairs]
        width = max(t.num_tokens for t in trajectories)
        sampled = _rows([t.loss_mask for t in trajectories], width, torch.bool)
        versions = _rows([t.weight_versions for t in trajectories], width, torch.int32)
        inside = _rows([np.ones(t.num_tokens, np.bool_) for t in trajectories], width, torch.bool)
        staleness = torch.where(inside, batch.version - versions, 0)
        baselines = [group.baseline_reward for _, group, _ in pairs]
        return cls(
            version=batch.version,
            sequences=[_lay_out(group, index, t) for index, group, t in pairs],
            num_groups=len(batch.groups),
            sampled=sampled,
            mask=sampled if mask_above is None else sampled & (staleness <= mask_above),
            rollout_logprobs=_rows([t.rollout_logprobs for t in trajectories], width, torch.float32),
            staleness=staleness,
            token_rewards=_rows([_rewards_by_token(t) for t in trajectories], width, torch.float32),
            component_rewards=torch.tensor([t.reward_components for t in trajectories], dtype=torch.float32),
            baseline_rewards=(
                torch.tensor([b for b in baselines if b is not None], dtype=torch.float32)
                if all(b is not None for b in baselines)
                else None
            ),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, T)"""
        return self.mask.shape[0], self.mask.shape[1]

    @cached_property
    def groups(self) -> Tensor:
        """[N] int64: index of each trajectory's group."""
        return torch.tensor([s.group for s in self.sequences], dtype=torch.int64)

    @cached_property
    def response_lengths(self) -> Tensor:
        """[N] int64."""
        return torch.tensor([s.response_length for s in self.sequences], dtype=torch.int64)

    @cached_property
    def num_trained_tokens(self) -> int:
        """Tokens inside the mask."""
        return int(self.mask.sum())

    @property
    def num_masked_tokens(self) -> int:
        """The policy's own tokens that are too old to train (`staleness.over_bound=mask`)."""
        return int(self.sampled.sum()) - self.num_trained_tokens

    @cached_property
    def trained_staleness(self) -> Int32Array:
        """Of every token that trains, in order; may be empty."""
        return self.staleness[self.mask].numpy()

    def rewards_with(self, bonuses: Tensor) -> Tensor:
        """[N, T] `token_rewards`, and bonuses [N] at the last token of each response."""
        last = (self.response_lengths - 1).clamp(min=0)
        return self.token_rewards.scatter_add(1, last[:, None], bonuses.float()[:, None])

    def mini_batches(self, count: int) -> list[list[int]]:
        """Sequence indices of `count` parts with the same number of groups, whole groups together."""
        assert self.num_groups % count == 0, (self.num_groups, count)
        per_part = self.num_groups // count
        return [
            [i for i, s in enumerate(self.sequences) if part * per_part <= s.group < (part + 1) * per_part]
            for part in range(count)
        ]


def _lay_out(group: TrajectoryGroup, index: int, trajectory: Trajectory) -> TrainingSequence:
    return TrainingSequence(
        key=group.key,
        token_ids=np.concatenate([np.asarray(group.prompt_token_ids, np.int32), trajectory.token_ids]),
        response_length=trajectory.num_tokens,
        group=index,
        reward=trajectory.reward,
        finish_reason=trajectory.finish_reason,
        task=group.task,
    )


def _rewards_by_token(trajectory: Trajectory) -> npt.NDArray[np.float32]:
    if trajectory.token_rewards is not None:
        return trajectory.token_rewards
    rewards = np.zeros(trajectory.num_tokens, np.float32)
    rewards[-1:] = trajectory.reward
    return rewards


def _rows(values: Sequence[npt.NDArray[np.generic]], width: int, dtype: torch.dtype) -> Tensor:
    """Arrays of several lengths to rows of one, 0 behind each."""
    rows = torch.zeros(len(values), width, dtype=dtype)
    for row, value in zip(rows, values, strict=True):
        row[: len(value)] = torch.from_numpy(np.array(value))
    return rows


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Some sequences of a batch, packed, and the way from their tokens to rows."""

    indices: list[int]
    """Which of the batch's sequences, in the order in which they are packed."""
    packed: PackedSequences
    places: Tensor
    """[S, T'] int64: which of the M each response position is; 0 behind the response."""

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
    """The part of a batch that shares an optimizer step."""

    indices: list[int]
    """Which of the batch's sequences."""
    micro_batches: list[MicroBatch]

    @classmethod
    def pack(cls, batch: TrainingBatch, indices: Sequence[int], max_tokens: int) -> Self:
        """Packs these sequences of the batch into micro-batches under a token budget."""
        lengths = [len(batch.sequences[i].token_ids) for i in indices]
        plan = [[indices[i] for i in part] for part in plan_micro_batches(lengths, max_tokens)]
        return cls(indices=list(indices), micro_batches=[_pack(batch, part) for part in plan])

    @property
    def packed(self) -> list[PackedSequences]:
        """What a model is given, micro-batch by micro-batch."""
        return [m.packed for m in self.micro_batches]


def _pack(batch: TrainingBatch, indices: list[int]) -> MicroBatch:
    responses = batch.response_lengths[indices]
    packed = PackedSequences.pack([batch.sequences[i].token_ids for i in indices], responses.tolist())
    offsets, starts = torch.arange(int(responses.max())), responses.cumsum(0) - responses
    places = torch.where(offsets < responses[:, None], starts[:, None] + offsets, 0)
    return MicroBatch(indices=indices, packed=packed, places=places)
