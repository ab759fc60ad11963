"""A batch as the learner sees it: sequences, and rows of what is known of each of their response tokens.

Owns the way from a shard of trajectories to aligned rows of the whole batch, and the parts (mini-batches) that share an
optimizer step. Tokens are there of this rank's sequences alone; all else is of all of them and the same on every rank,
so that whatever is decided over a batch is decided alike. Knows no model and no objective.

Legend: N trajectories of the batch, T response positions of its longest, K named rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from async_rl.protocol import Batch, DeliveryKey, FinishReason, GroupOutline, Int32Array, Trajectory, TrajectoryOutline
from learner.mesh import Mesh, SingleRank


@dataclass(frozen=True, kw_only=True)
class TrainingSequence:
    """One trajectory behind its prompt."""

    key: DeliveryKey
    """Of its group."""
    prompt_length: int
    response_length: int
    group: int
    """Index of the group in the batch."""
    shard: int
    """Whose ranks train it."""
    reward: float
    finish_reason: FinishReason
    task: str
    token_ids: Int32Array | None
    """Prompt and response; None of another shard's."""


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """The sequences of one batch and their rows; what lies behind a response is 0."""

    version: int
    sequences: list[TrainingSequence]
    num_groups: int
    shard: int
    """This rank's."""
    num_shards: int
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
    def build(cls, batch: Batch, *, mask_above: int | None, mesh: Mesh | None = None) -> Self:
        """Lays out a batch; called by all ranks at once.

        Args:
            batch: this rank's shard, as it came from the controller.
            mask_above: tokens with more staleness do not train, their trajectory's reward still counts
                (`staleness.over_bound=mask`); None trains all.
            mesh: of the ranks; None: this is the only one.
        """
        mesh = mesh or SingleRank()
        assert batch.shard == mesh.shard, (batch.shard, mesh.shard)
        sequences = _lay_out(batch)
        rows = _Rows.of(batch, sequences).merged(mesh)
        lengths = torch.tensor([s.response_length for s in sequences])
        inside = torch.arange(rows.versions.shape[1]) < lengths[:, None]
        staleness = torch.where(inside, batch.version - rows.versions, 0)
        outlines = [(group, t) for group in batch.outline for t in group.trajectories]
        baselines = [group.baseline_reward for group, _ in outlines]
        return cls(
            version=batch.version,
            sequences=sequences,
            num_groups=len(batch.outline),
            shard=mesh.shard,
            num_shards=mesh.num_shards,
            sampled=rows.sampled,
            mask=rows.sampled if mask_above is None else rows.sampled & (staleness <= mask_above),
            rollout_logprobs=rows.rollout_logprobs,
            staleness=staleness,
            token_rewards=rows.token_rewards,
            component_rewards=torch.tensor([t.reward_components for _, t in outlines], dtype=torch.float32),
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
    def own_rows(self) -> list[int]:
        """Of the sequences that this rank trains."""
        return [row for row, sequence in enumerate(self.sequences) if sequence.shard == self.shard]

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


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """[N, T] each, 0 behind a response."""

    sampled: Tensor
    rollout_logprobs: Tensor
    versions: Tensor
    token_rewards: Tensor

    @classmethod
    def of(cls, batch: Batch, sequences: Sequence[TrainingSequence]) -> Self:
        """This shard's rows; those of others are 0."""
        shape = (len(sequences), max(s.response_length for s in sequences))
        rows = [i for i, s in enumerate(sequences) if s.shard == batch.shard]
        own = [t for part in batch.parts for t in part.trajectories]
        return cls(
            sampled=_fill(shape, rows, [t.loss_mask for t in own], torch.bool),
            rollout_logprobs=_fill(shape, rows, [t.rollout_logprobs for t in own], torch.float32),
            versions=_fill(shape, rows, [t.weight_versions for t in own], torch.int32),
            token_rewards=_fill(shape, rows, [_rewards_by_token(t) for t in own], torch.float32),
        )

    def merged(self, mesh: Mesh) -> Self:
        """With the rows of all shards."""
        return type(self)(
            sampled=mesh.merge(self.sampled.byte()).bool(),
            rollout_logprobs=mesh.merge(self.rollout_logprobs),
            versions=mesh.merge(self.versions),
            token_rewards=mesh.merge(self.token_rewards),
        )


def _lay_out(batch: Batch) -> list[TrainingSequence]:
    """Of all shards, in the outline's order."""
    prompts = {part.group: np.asarray(part.prompt_token_ids, np.int32) for part in batch.parts}
    own = iter([np.concatenate([prompts[part.group], t.token_ids]) for part in batch.parts for t in part.trajectories])
    return [
        _sequence(group, index, t, next(own) if t.shard == batch.shard else None)
        for index, group in enumerate(batch.outline)
        for t in group.trajectories
    ]


def _sequence(
    group: GroupOutline, index: int, trajectory: TrajectoryOutline, token_ids: Int32Array | None
) -> TrainingSequence:
    return TrainingSequence(
        key=group.key,
        prompt_length=group.num_prompt_tokens,
        response_length=trajectory.num_tokens,
        group=index,
        shard=trajectory.shard,
        reward=trajectory.reward,
        finish_reason=trajectory.finish_reason,
        task=group.task,
        token_ids=token_ids,
    )


def _rewards_by_token(trajectory: Trajectory) -> npt.NDArray[np.float32]:
    if trajectory.token_rewards is not None:
        return trajectory.token_rewards
    rewards = np.zeros(trajectory.num_tokens, np.float32)
    rewards[-1:] = trajectory.reward
    return rewards


def _fill(
    shape: tuple[int, int], rows: Sequence[int], values: Sequence[npt.NDArray[np.generic]], dtype: torch.dtype
) -> Tensor:
    """Arrays of several lengths at some rows, 0 elsewhere."""
    filled = torch.zeros(shape, dtype=dtype)
    for row, value in zip(rows, values, strict=True):
        filled[row, : len(value)] = torch.from_numpy(np.array(value))
    return filled
