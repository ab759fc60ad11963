"""What travels is sound, or is refused where it is read."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_rl.protocol import Batch, FinishReason, Histogram, Trajectory, TrajectoryGroup, VersionSpan, spans_cover
from tests.async_rl.groups import make_group


def span(version: int, start: int, end: int) -> VersionSpan:
    return VersionSpan(version=version, start=start, end=end)


def trajectory(reward: float = 1.0) -> Trajectory:
    return Trajectory.build(
        token_ids=[5, 6, 7],
        rollout_logprobs=[-0.1, -0.2, -0.3],
        loss_mask=[True, False, True],
        spans=[span(3, 0, 2), span(4, 2, 3)],
        reward=reward,
        finish_reason=FinishReason.STOP,
    )


def test_arrays_are_read_back_as_they_were_packed() -> None:
    t = msgspec.msgpack.decode(msgspec.msgpack.encode(trajectory()), type=Trajectory)
    assert t.token_ids.tolist() == [5, 6, 7] and t.token_ids.dtype == np.int32
    assert t.rollout_logprobs.tolist() == np.array([-0.1, -0.2, -0.3], np.float32).tolist()
    assert t.loss_mask.tolist() == [True, False, True]
    assert t.weight_versions.tolist() == [3, 3, 4]


@pytest.mark.parametrize(
    "damage",
    [
        {"token_bytes": b"\0" * 8},
        {"loss_mask_bytes": b"\1\1"},
        {"loss_mask_bytes": b"\1\2\1"},
        {"rollout_logprob_bytes": b"\0" * 16},
        {"spans": [{"version": 3, "start": 0, "end": 2}]},
        {"reward": float("nan")},
        {"rollout_logprob_bytes": np.array([-0.1, -0.2, -np.inf], "<f4").tobytes()},
        {"rollout_logprob_bytes": np.array([np.nan, -0.2, -0.3], "<f4").tobytes()},
        {"finish_reason": "boredom"},
        {"colour": "blue"},
    ],
    ids=str,
)
def test_a_trajectory_that_contradicts_itself_is_refused(damage: dict[str, object]) -> None:
    content = msgspec.msgpack.decode(msgspec.msgpack.encode(trajectory())) | damage
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(content), type=Trajectory)


def test_what_an_environment_wrote_needs_no_log_probability() -> None:
    content = msgspec.msgpack.decode(msgspec.msgpack.encode(trajectory()))
    content["rollout_logprob_bytes"] = np.array([-0.1, np.nan, -0.3], "<f4").tobytes()
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(content), type=Trajectory)
    assert np.isnan(copy.rollout_logprobs).tolist() == [False, True, False]


@given(st.lists(st.integers(1, 5), max_size=6))
def test_spans_side_by_side_cover_and_no_gap_or_overlap_does(lengths: list[int]) -> None:
    ends = np.cumsum(lengths).tolist()
    spans = [span(0, end - length, end) for length, end in zip(lengths, ends, strict=True)]
    total = sum(lengths)
    assert spans_cover(spans, total)
    assert not spans_cover(spans, total + 1)
    if spans:
        assert not spans_cover(spans[1:], total)
        assert not spans_cover([*spans, spans[-1]], total + lengths[-1])
        assert not spans_cover([*spans, span(0, total, total)], total), "an empty span"


def test_a_groups_versions_are_those_of_all_its_tokens() -> None:
    group = make_group(1, versions=(4, 2, 3))
    assert (group.oldest_version, group.newest_version) == (2, 4)
    assert group.rewards == [0.0, 1.0]


def test_a_group_without_a_token_is_refused() -> None:
    empty = Trajectory.build(token_ids=[], rollout_logprobs=[], spans=[], reward=0.0, finish_reason=FinishReason.STOP)
    with pytest.raises(ValueError, match="without a token"):
        msgspec.structs.replace(make_group(1), trajectories=[empty])
    group = msgspec.structs.replace(make_group(1), trajectories=[empty, trajectory()])
    assert isinstance(group, TrajectoryGroup)


def test_token_rewards_are_none_or_one_a_token() -> None:
    assert trajectory().token_rewards is None
    rich = Trajectory.build(
        token_ids=[5, 6],
        rollout_logprobs=[-0.1, -0.2],
        spans=[span(3, 0, 2)],
        reward=1.0,
        finish_reason=FinishReason.STOP,
        token_rewards=[0.25, 0.5],
        reward_components=(1.0, 0.0),
    )
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(rich), type=Trajectory)
    assert copy.token_rewards is not None and copy.token_rewards.dtype == np.float32
    assert (copy.token_rewards.tolist(), copy.reward_components) == ([0.25, 0.5], [1.0, 0.0])


def test_what_nobody_asked_for_takes_no_room_on_the_wire() -> None:
    group = msgspec.msgpack.decode(msgspec.msgpack.encode(make_group(1)))
    assert "baseline_reward" not in group
    assert not {"token_reward_bytes", "reward_components", "num_turns"} & group["trajectories"][0].keys()


def with_components(*components: list[float]) -> TrajectoryGroup:
    """A group whose every total is 1."""
    group = make_group(1, rewards=(1.0,) * len(components))
    pairs = zip(group.trajectories, components, strict=True)
    return msgspec.structs.replace(
        group, trajectories=[msgspec.structs.replace(t, reward_components=c) for t, c in pairs]
    )


@pytest.mark.parametrize(
    ("group", "has_signal"),
    [
        (make_group(1, rewards=(0.5, 0.5, 0.5)), False),
        (make_group(1, rewards=(0.5, 0.5, 0.25)), True),
        (make_group(1, rewards=(0.5,)), False),
        (msgspec.structs.replace(make_group(1, rewards=(0.5, 0.5)), baseline_reward=0.5), False),
        (msgspec.structs.replace(make_group(1, rewards=(0.5, 0.5)), baseline_reward=0.0), True),
        (msgspec.structs.replace(make_group(1, rewards=(0.5, 1.0)), baseline_reward=0.5), True),
        (with_components([1.0, 0.0], [0.0, 1.0]), True),
        (with_components([0.5, 0.5], [0.5, 0.5]), False),
    ],
)
def test_a_group_has_signal_if_something_sets_its_trajectories_apart(group: TrajectoryGroup, has_signal: bool) -> None:
    assert group.has_signal is has_signal


def test_trajectories_of_a_group_have_the_same_components() -> None:
    with pytest.raises(ValueError, match="different numbers of reward components"):
        with_components([1.0], [0.0, 1.0])


def test_a_histogram_has_one_edge_more_than_counts() -> None:
    with pytest.raises(ValueError, match="2 counts between 2 edges"):
        Histogram(edges=[0.0, 1.0], counts=[1, 2])


def test_a_batch_is_cut_into_shards_that_each_know_of_all_trajectories() -> None:
    groups = [make_group(4, (3,), rewards=(0.0, 1.0, 0.5)), make_group(9, (2, 3))]
    first, second, third = Batch.cut(version=3, groups=groups, shards=[[1, 0, 1], [1, 1]], count=3)
    assert first.outline == second.outline == third.outline
    assert [[t.shard for t in g.trajectories] for g in first.outline] == [[1, 0, 1], [1, 1]]
    assert [[t.reward for t in g.trajectories] for g in first.outline] == [[0.0, 1.0, 0.5], [0.0, 1.0]]
    assert [g.key for g in first.outline] == [g.key for g in groups]
    assert [(p.group, p.trajectories) for p in first.parts] == [(0, groups[0].trajectories[1:2])]
    assert [(p.group, p.trajectories) for p in second.parts] == [
        (0, groups[0].trajectories[::2]),
        (1, groups[1].trajectories),
    ]
    assert third.parts == []
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(second), type=Batch) == second


def test_a_shard_that_contradicts_its_outline_is_refused() -> None:
    first, second = Batch.cut(version=3, groups=[make_group(4, (3,))], shards=[[0, 1]], count=2)
    damages: list[dict[str, object]] = [{"parts": []}, {"shard": 2}, {"outline": []}]
    for damage in damages:
        content = msgspec.msgpack.decode(msgspec.msgpack.encode(first)) | damage
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(content), type=Batch)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(second), type=Batch) == second
