"""Small trajectory groups for tests of the loop's logic."""

from async_rl.protocol import FinishReason, Trajectory, TrajectoryGroup, VersionSpan


def make_group(
    group_id: int,
    versions: tuple[int, ...] = (0,),
    *,
    attempt: int = 0,
    incarnation: str = "g0",
    rewards: tuple[float, ...] = (0.0, 1.0),
) -> TrajectoryGroup:
    """A group with one token a version in each trajectory."""
    spans = [VersionSpan(version=v, start=i, end=i + 1) for i, v in enumerate(versions)]
    trajectories = [
        Trajectory.build(
            token_ids=[7] * len(versions),
            rollout_logprobs=[-0.5] * len(versions),
            spans=spans,
            reward=reward,
            finish_reason=FinishReason.STOP,
        )
        for reward in rewards
    ]
    return TrajectoryGroup(
        group_id=group_id,
        attempt=attempt,
        incarnation=incarnation,
        prompt_id=group_id,
        task="",
        prompt_token_ids=[1, 2],
        trajectories=trajectories,
    )
