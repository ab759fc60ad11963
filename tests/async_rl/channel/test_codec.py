"""Frames: what is encoded is decoded, and nothing else is a message."""

from typing import cast, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_rl.channel.codec import decode_controller_message, decode_peer_message, encode, schema_version_of
from async_rl.errors import ChannelError
from async_rl.protocol import (
    SCHEMA_VERSION,
    Activation,
    Batch,
    ControllerMessage,
    Delivery,
    FinishReason,
    GeneratorStats,
    Hello,
    Histogram,
    Lease,
    PeerMessage,
    Prompt,
    Purpose,
    Role,
    Sampling,
    StepMetrics,
    TensorEntry,
    Trajectory,
    TrajectoryGroup,
    VersionSpan,
    WeightManifest,
)
from tests.async_rl.groups import make_group

# Wide, so that every width of msgpack's numbers occurs.
numbers = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def trajectories(draw: st.DrawFn, *, num_components: int = 0) -> Trajectory:
    cuts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    ends = np.cumsum(cuts)
    versions = sorted(draw(st.lists(st.integers(0, 99), min_size=len(cuts), max_size=len(cuts))))
    num_tokens = int(ends[-1])
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=num_tokens, max_size=num_tokens))
    mask = draw(st.lists(st.booleans(), min_size=num_tokens, max_size=num_tokens))
    logprobs = draw(st.lists(st.floats(-50, 0, width=32), min_size=num_tokens, max_size=num_tokens))
    rewards = draw(st.none() | st.lists(st.floats(-9, 9, width=32), min_size=num_tokens, max_size=num_tokens))
    return Trajectory.build(
        token_ids=tokens,
        rollout_logprobs=logprobs,
        loss_mask=mask,
        spans=[
            VersionSpan(version=v, start=int(end) - cut, end=int(end))
            for v, cut, end in zip(versions, cuts, ends, strict=True)
        ],
        reward=draw(finite),
        finish_reason=draw(st.sampled_from(FinishReason)),
        num_turns=draw(st.integers(1, 9)),
        token_rewards=rewards,
        reward_components=draw(st.lists(finite, min_size=num_components, max_size=num_components)),
    )


@st.composite
def groups(draw: st.DrawFn) -> TrajectoryGroup:
    num_components = draw(st.integers(0, 2))
    return TrajectoryGroup(
        group_id=draw(numbers),
        attempt=draw(numbers),
        incarnation=draw(st.text(max_size=20)),
        prompt_id=draw(numbers),
        task=draw(st.text(max_size=20)),
        prompt_token_ids=draw(st.lists(st.integers(0, 2**31 - 1), max_size=9)),
        trajectories=draw(st.lists(trajectories(num_components=num_components), min_size=1, max_size=3)),
        baseline_reward=draw(st.none() | finite),
    )


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    counts = draw(st.lists(numbers, max_size=4))
    return Histogram(edges=draw(st.lists(finite, min_size=len(counts) + 1, max_size=len(counts) + 1)), counts=counts)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """One shard of a batch, whose parts are what its outline says."""
    drawn = draw(st.lists(groups(), min_size=1, max_size=2))
    count = draw(st.integers(1, 3))
    shards = [[draw(st.integers(0, count - 1)) for _ in group.trajectories] for group in drawn]
    cut = Batch.cut(version=draw(numbers), groups=drawn, shards=shards, count=count, checkpoint=draw(st.booleans()))
    return draw(st.sampled_from(cut))


def build(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """A struct with every field drawn by its type, where the fields are independent."""
    if kind is Batch:
        return batches()
    return st.builds(kind, **{field.name: st.from_type(field.type) for field in msgspec.structs.fields(kind)})


st.register_type_strategy(int, numbers)
st.register_type_strategy(float, finite)
st.register_type_strategy(Histogram, histograms())
st.register_type_strategy(TrajectoryGroup, groups())
for nested in (Activation, GeneratorStats, Prompt, Sampling, Lease, StepMetrics, TensorEntry, WeightManifest):
    st.register_type_strategy(nested, build(nested))


@pytest.mark.parametrize("kind", get_args(PeerMessage), ids=lambda kind: kind.__name__)
@given(sampled=st.data())
@settings(max_examples=15)
def test_every_message_of_a_peer_comes_back_equal(kind: type[PeerMessage], sampled: st.DataObject) -> None:
    message = cast(PeerMessage, sampled.draw(build(kind)))
    assert decode_peer_message(encode(message)) == message


@pytest.mark.parametrize("kind", get_args(ControllerMessage), ids=lambda kind: kind.__name__)
@given(sampled=st.data())
@settings(max_examples=15)
def test_every_message_of_the_controller_comes_back_equal(
    kind: type[ControllerMessage], sampled: st.DataObject
) -> None:
    message = cast(ControllerMessage, sampled.draw(build(kind)))
    assert decode_controller_message(encode(message)) == message


@given(trajectory=trajectories())
def test_arrays_come_back_with_their_dtypes_and_values(trajectory: Trajectory) -> None:
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(trajectory), type=Trajectory)
    assert copy.token_ids.dtype == np.int32 and copy.rollout_logprobs.dtype == np.float32
    assert (copy.token_ids == trajectory.token_ids).all()
    assert (copy.rollout_logprobs == trajectory.rollout_logprobs).all()
    assert (copy.loss_mask == trajectory.loss_mask).all()
    assert (copy.weight_versions == trajectory.weight_versions).all()


@given(noise=st.binary(max_size=200))
@settings(max_examples=300)
def test_no_bytes_crash_the_decoders(noise: bytes) -> None:
    for decode in (decode_peer_message, decode_controller_message):
        try:
            decode(noise)
        except ChannelError:
            continue
    schema_version_of(noise)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x81\xa1a" + b"\x91" * 100_000,
        b"\x81\xa4kind" + b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",
        b"\x82\xa4kind\xa6Credit\xa5limit\xdd\xff\xff\xff\xff",
    ],
    ids=["nested", "nested kind", "a map of four billion", "an array of four billion"],
)
def test_frames_made_to_exhaust_the_decoder_are_refused(frame: bytes) -> None:
    for decode in (decode_peer_message, decode_controller_message):
        with pytest.raises(ChannelError, match=f"malformed frame of {len(frame)} bytes"):
            decode(frame)
    assert schema_version_of(frame) is None


SOUND = make_group(3, (1, 2)).trajectories[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_bytes", SOUND.token_bytes[:-1]),
        ("token_bytes", SOUND.token_bytes[:-4]),
        ("rollout_logprob_bytes", SOUND.rollout_logprob_bytes[:-4]),
        ("loss_mask_bytes", b"\x01"),
        ("loss_mask_bytes", b"\x01\x02"),
        ("spans", []),
        ("spans", [{"version": 1, "start": 0, "end": 1}]),
        ("spans", [{"version": 1, "start": 1, "end": 2}, {"version": 1, "start": 0, "end": 1}]),
        ("spans", [{"version": 1, "start": 0, "end": 2}, {"version": 1, "start": 1, "end": 2}]),
        ("reward", float("nan")),
        ("reward", float("inf")),
        ("token_reward_bytes", SOUND.token_bytes[:-1]),
        ("token_reward_bytes", SOUND.token_bytes[:-4]),
        ("token_reward_bytes", np.array([0, np.nan], "<f4").tobytes()),
        ("reward_components", [0.5, float("inf")]),
        ("finish_reason", "bored"),
        ("num_turns", "1"),
        ("unknown", 1),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_no_message(field: str, value: object) -> None:
    frame = msgspec.msgpack.decode(encode(Delivery(purpose=Purpose.TRAIN, group=make_group(3, (1, 2)))))
    frame["group"]["trajectories"][0][field] = value
    with pytest.raises(ChannelError, match="malformed"):
        decode_peer_message(msgspec.msgpack.encode(frame))


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [("trajectories", [], "a group without a token"), ("baseline_reward", float("nan"), "a baseline of nan")],
)
def test_a_group_that_contradicts_itself_is_no_message(field: str, value: object, problem: str) -> None:
    frame = msgspec.msgpack.decode(encode(Delivery(purpose=Purpose.TRAIN, group=make_group(3, (1, 2)))))
    frame["group"][field] = value
    with pytest.raises(ChannelError, match=problem):
        decode_peer_message(msgspec.msgpack.encode(frame))


def test_the_schema_is_read_from_a_hello_of_any_schema() -> None:
    greeting = Hello(schema_version=SCHEMA_VERSION, role=Role.LEARNER, name="l", incarnation="l-a", pid=1, host="here")
    assert schema_version_of(encode(greeting)) == SCHEMA_VERSION
    assert schema_version_of(msgspec.msgpack.encode({"kind": "Hello", "schema_version": 99, "new": [1]})) == 99
    assert schema_version_of(b"noise") is None
