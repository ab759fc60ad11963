"""A batch, as one shard of the learner gets it: its own trajectories in full, and an outline of all.

Owns how a batch is cut and what every shard may know of the others' trajectories: enough for the statistics of a group
and for planning, no tokens. Who trains what is decided elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import Self

import msgspec

from async_rl.protocol.trajectory import DeliveryKey, FinishReason, Trajectory, TrajectoryGroup
from async_rl.protocol.wire import Message, Wire


class TrajectoryOutline(Wire, frozen=True, kw_only=True):
    """A trajectory without its tokens."""

    num_tokens: int
    reward: float
    finish_reason: FinishReason
    shard: int = 0
    """Who trains it."""
    reward_components: list[float] = msgspec.field(default_factory=list)


class GroupOutline(Wire, frozen=True, kw_only=True):
    """A group without its tokens."""

    group_id: int
    attempt: int
    incarnation: str
    num_prompt_tokens: int
    trajectories: list[TrajectoryOutline]
    task: str = ""
    baseline_reward: float | None = None

    @property
    def key(self) -> DeliveryKey:
        """Tells one delivery from all others."""
        return self.group_id, self.attempt, self.incarnation


class GroupPart(Wire, frozen=True, kw_only=True):
    """What a shard trains of a group."""

    group: int
    """Which of the outline's."""
    prompt_token_ids: list[int]
    trajectories: list[Trajectory]
    """Those of the outline that are this shard's, in its order; at least one."""


class Batch(Message, frozen=True, kw_only=True):
    """A shard of `groups_per_step` groups; every rank that asks for it gets the same bytes."""

    version: int
    outline: list[GroupOutline]
    """Of all groups, the same for all shards."""
    parts: list[GroupPart]
    """In the outline's order. Empty where a batch has fewer trajectories than shards."""
    shard: int = 0
    checkpoint: bool = False
    """One is to be written of the version that this batch makes."""

    def __post_init__(self) -> None:
        """Raises `ValueError`, on the wire too."""
        given = [(part.group, t.num_tokens) for part in self.parts for t in part.trajectories]
        if given != [(group, t.num_tokens) for group, t in self._own()]:
            raise ValueError(f"shard {self.shard} of a batch has other trajectories than its outline says")

    def _own(self) -> Iterator[tuple[int, TrajectoryOutline]]:
        for index, group in enumerate(self.outline):
            yield from ((index, t) for t in group.trajectories if t.shard == self.shard)

    @classmethod
    def whole(cls, *, version: int, groups: Sequence[TrajectoryGroup]) -> Self:
        """A batch of one shard."""
        (batch,) = cls.cut(version=version, groups=groups, shards=[[0] * len(g.trajectories) for g in groups], count=1)
        return batch

    @classmethod
    def cut(
        cls,
        *,
        version: int,
        groups: Sequence[TrajectoryGroup],
        shards: Sequence[Sequence[int]],
        count: int,
        checkpoint: bool = False,
    ) -> list[Self]:
        """All shards of a batch.

        Args:
            version: the learner's.
            groups: of the batch.
            shards: who trains each trajectory of each group, below `count`.
            count: how many shards there are.
            checkpoint: see the field.
        """
        outline = [_outline(group, own) for group, own in zip(groups, shards, strict=True)]
        parts: list[list[GroupPart]] = [[] for _ in range(count)]
        for index, (group, own) in enumerate(zip(groups, shards, strict=True)):
            for shard in sorted(set(own)):
                trajectories = [t for t, taker in zip(group.trajectories, own, strict=True) if taker == shard]
                parts[shard].append(
                    GroupPart(group=index, prompt_token_ids=group.prompt_token_ids, trajectories=trajectories)
                )
        return [
            cls(version=version, shard=shard, outline=outline, parts=own, checkpoint=checkpoint)
            for shard, own in enumerate(parts)
        ]


def _outline(group: TrajectoryGroup, shards: Sequence[int]) -> GroupOutline:
    return GroupOutline(
        group_id=group.group_id,
        attempt=group.attempt,
        incarnation=group.incarnation,
        num_prompt_tokens=len(group.prompt_token_ids),
        trajectories=[
            TrajectoryOutline(
                num_tokens=t.num_tokens,
                reward=t.reward,
                finish_reason=t.finish_reason,
                shard=shard,
                reward_components=t.reward_components,
            )
            for t, shard in zip(group.trajectories, shards, strict=True)
        ],
        task=group.task,
        baseline_reward=group.baseline_reward,
    )
