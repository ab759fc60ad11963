"""Small trajectory groups with tokens that a `BigramBackend` can score."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np

from async_rl.protocol import Batch, FinishReason, Trajectory, TrajectoryGroup, VersionSpan


def make_trajectory(
    tokens: Sequence[int],
    *,
    reward: float = 0.0,
    versions: Sequence[int] | None = None,
    rollout_logprobs: Sequence[float] | None = None,
    loss_mask: Sequence[bool] | None = None,
    finish_reason: FinishReason = FinishReason.STOP,
    components: Sequence[float] = (),
) -> Trajectory:
    """One trajectory; by default of version 0, with log μ = −1 everywhere."""
    spans = [VersionSpan(version=v, start=i, end=i + 1) for i, v in enumerate(versions or [0] * len(tokens))]
    return Trajectory.build(
        token_ids=tokens,
        rollout_logprobs=[-1.0] * len(tokens) if rollout_logprobs is None else rollout_logprobs,
        spans=spans,
        reward=reward,
        finish_reason=finish_reason,
        loss_mask=loss_mask,
        reward_components=components,
    )


def make_group(
    group_id: int,
    prompt: Sequence[int],
    trajectories: Sequence[Trajectory],
    task: str = "",
    baseline_reward: float | None = None,
) -> TrajectoryGroup:
    """One group."""
    return TrajectoryGroup(
        group_id=group_id,
        attempt=0,
        incarnation="g0",
        prompt_id=group_id,
        task=task,
        prompt_token_ids=list(prompt),
        trajectories=list(trajectories),
        baseline_reward=baseline_reward,
    )


def random_groups(
    *,
    num_groups: int,
    group_size: int,
    version: int = 0,
    seed: int = 0,
    vocabulary: int = 12,
    max_length: int = 9,
    num_components: int = 0,
    with_baseline: bool = False,
) -> list[TrajectoryGroup]:
    """Prompts and responses of all lengths, rewards 0 or 1, log μ around −2, versions up to the batch's."""
    rng = np.random.default_rng(seed)

    def trajectory() -> Trajectory:
        length = int(rng.integers(1, max_length + 1))
        return make_trajectory(
            rng.integers(0, vocabulary, length).tolist(),
            reward=float(rng.integers(0, 2)),
            rollout_logprobs=(-2 + 0.5 * rng.standard_normal(length)).tolist(),
            versions=sorted(rng.integers(max(0, version - 2), version + 1, length).tolist()),
            components=rng.random(num_components).tolist(),
        )

    return [
        make_group(
            n,
            rng.integers(0, vocabulary, int(rng.integers(1, 5))).tolist(),
            [trajectory() for _ in range(group_size)],
            task="even" if n % 2 == 0 else "odd",
            baseline_reward=0.5 if with_baseline else None,
        )
        for n in range(num_groups)
    ]


class GroupOptions(TypedDict, total=False):
    """Of `random_groups`."""

    seed: int
    vocabulary: int
    max_length: int
    num_components: int
    with_baseline: bool


def random_batch(*, num_groups: int, group_size: int, version: int = 0, **options: Unpack[GroupOptions]) -> Batch:
    """The same as a batch of one shard."""
    groups = random_groups(num_groups=num_groups, group_size=group_size, version=version, **options)
    return Batch.whole(version=version, groups=groups)
