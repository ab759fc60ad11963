"""The learner's conversation with a controller, over a real socket."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from async_rl.channel.controller_socket import ControllerSocket
from async_rl.channel.peer_socket import BlockingPeerSocket
from async_rl.errors import ChannelError
from async_rl.protocol import (
    SCHEMA_VERSION,
    Arrival,
    BatchRequest,
    CheckpointKept,
    CheckpointWritten,
    Commit,
    End,
    Hello,
    PeerMessage,
    Refused,
    Role,
    StepMetrics,
    TrajectoryGroup,
)
from learner.batch_source import ControllerBatchSource
from learner.checkpoint_writer import WriteTimes
from tests.learner.groups import make_group, make_trajectory, random_batch

LIMIT = 1 << 20
LEARNER = "learner-0-a"
TIMES = WriteTimes(stood_s=0.25, write_s=2.0)
WRITTEN = CheckpointWritten(version=4, folder="there", stood_s=0.25, write_s=2.0)


@pytest.fixture
async def controller() -> AsyncIterator[ControllerSocket]:
    socket = ControllerSocket("127.0.0.1", 0, max_message_bytes=LIMIT, epoch="e1")
    yield socket
    socket.close()


@pytest.fixture
async def peer(controller: ControllerSocket) -> AsyncIterator[BlockingPeerSocket]:
    hello = Hello(
        schema_version=SCHEMA_VERSION, role=Role.LEARNER, name="learner-0", incarnation=LEARNER, pid=1, host="here"
    )
    peer = BlockingPeerSocket(controller.address, hello, max_message_bytes=LIMIT)
    received = asyncio.create_task(controller.receive())
    await asyncio.to_thread(peer.connect, 5.0)
    await received
    yield peer
    peer.close()


@pytest.fixture
def source(peer: BlockingPeerSocket) -> ControllerBatchSource:
    return ControllerBatchSource(peer, ask_again_s=0.2)


async def test_a_batch_is_asked_for_and_comes_whole(
    controller: ControllerSocket, source: ControllerBatchSource
) -> None:
    batch = random_batch(num_groups=2, group_size=3, version=4)
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4))
    assert await controller.receive() == (LEARNER, BatchRequest(version=4))
    await controller.send(LEARNER, batch)
    assert await asked == batch


def fresh_group(group_id: int, version: int) -> TrajectoryGroup:
    """All of one version."""
    return make_group(group_id, [1], [make_trajectory([2, 3], versions=[version, version])])


async def test_groups_are_scored_one_at_a_time_until_the_batch_is_there(
    controller: ControllerSocket, source: ControllerBatchSource
) -> None:
    scored: list[TrajectoryGroup] = []
    batch = random_batch(num_groups=1, group_size=2, version=4)
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4, scored.append))
    for number in range(2):
        assert await controller.receive() == (LEARNER, BatchRequest(version=4, num_arrivals=number))
        await controller.send(LEARNER, Arrival(version=4, number=number, group=fresh_group(number, 4)))
    assert await controller.receive() == (LEARNER, BatchRequest(version=4, num_arrivals=2))
    await controller.send(LEARNER, batch)
    assert await asked == batch
    assert scored == [fresh_group(0, 4), fresh_group(1, 4)]


async def test_a_batch_that_comes_during_a_scoring_is_taken_right_after_it(
    controller: ControllerSocket, source: ControllerBatchSource
) -> None:
    batch = random_batch(num_groups=1, group_size=2, version=4)
    scoring, batch_is_sent = threading.Event(), threading.Event()
    scored: list[int] = []

    def score(group: TrajectoryGroup) -> None:
        scoring.set()
        assert batch_is_sent.wait(5)
        scored.append(group.group_id)

    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4, score))
    await controller.receive()
    await controller.send(LEARNER, Arrival(version=4, number=0, group=fresh_group(7, 4)))
    assert await asyncio.to_thread(scoring.wait, 5)
    await controller.send(LEARNER, batch)
    batch_is_sent.set()
    assert await asked == batch
    assert scored == [7]


async def test_an_arrival_that_comes_twice_is_scored_once_and_a_lost_one_is_asked_for_again(
    controller: ControllerSocket, source: ControllerBatchSource
) -> None:
    scored: list[TrajectoryGroup] = []
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4, scored.append))
    assert [(await controller.receive())[1] for _ in range(2)] == [BatchRequest(version=4, num_arrivals=0)] * 2
    for _ in range(2):
        await controller.send(LEARNER, Arrival(version=4, number=0, group=fresh_group(7, 4)))
    assert await controller.receive() == (LEARNER, BatchRequest(version=4, num_arrivals=1))
    await controller.send(LEARNER, random_batch(num_groups=1, group_size=2, version=4))
    await asked
    assert scored == [fresh_group(7, 4)]
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 5, scored.append))
    assert await controller.receive() == (LEARNER, BatchRequest(version=5, num_arrivals=0))
    await controller.send(LEARNER, Arrival(version=4, number=0, group=fresh_group(7, 4)))
    await controller.send(LEARNER, End(reason="enough", checkpoint=True))
    assert await asked == End(reason="enough", checkpoint=True)
    assert scored == [fresh_group(7, 4)]


async def test_a_rank_asks_for_its_own_shard(controller: ControllerSocket, peer: BlockingPeerSocket) -> None:
    source = ControllerBatchSource(peer, shard=3)
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4))
    assert await controller.receive() == (LEARNER, BatchRequest(version=4, shard=3))
    await controller.send(LEARNER, random_batch(num_groups=1, group_size=2, version=4))
    await asked


async def test_what_gets_no_answer_is_asked_again_after_the_last_commit(
    controller: ControllerSocket, source: ControllerBatchSource
) -> None:
    metrics = StepMetrics(scalars={"loss": 0.5})
    source.commit(4, metrics)
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4))
    commit, request = (LEARNER, Commit(version=4, metrics=metrics)), (LEARNER, BatchRequest(version=4))
    assert [await controller.receive() for _ in range(4)] == [commit, request, commit, request]
    await controller.send(LEARNER, random_batch(num_groups=1, group_size=2, version=3))
    batch = random_batch(num_groups=1, group_size=2, version=4)
    await controller.send(LEARNER, batch)
    assert await asked == batch, "the answer to an older question is passed over"


async def test_the_end_comes_instead_of_a_batch(controller: ControllerSocket, source: ControllerBatchSource) -> None:
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4))
    await controller.receive()
    end = End(reason="enough", checkpoint=True)
    await controller.send(LEARNER, end)
    assert await asked == end


async def test_a_checkpoint_is_complete_once_the_controller_says_so(
    controller: ControllerSocket, source: ControllerBatchSource
) -> None:
    source.complete_checkpoint(4, Path("there"), TIMES)
    completing = asyncio.create_task(asyncio.to_thread(source.await_checkpoint))
    assert await controller.receive() == (LEARNER, WRITTEN)
    assert not completing.done()
    await controller.send(LEARNER, CheckpointKept(version=4))
    await completing


async def test_a_checkpoint_that_becomes_whole_while_the_learner_waits_is_told_of_and_its_keeping_heard(
    controller: ControllerSocket, source: ControllerBatchSource
) -> None:
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 6))
    assert await controller.receive() == (LEARNER, BatchRequest(version=6))
    source.complete_checkpoint(4, Path("there"), TIMES)
    heard = [message async for message in until_written(controller)]
    assert set(map(type, heard)) <= {BatchRequest}
    await controller.send(LEARNER, CheckpointKept(version=4))
    end = End(reason="enough", checkpoint=False)
    await controller.send(LEARNER, end)
    assert await asked == end
    # It was kept: nothing to wait for.
    source.await_checkpoint()


async def until_written(controller: ControllerSocket) -> AsyncIterator[PeerMessage]:
    while (message := (await controller.receive())[1]) != WRITTEN:
        yield message


async def test_a_commit_waits_for_nobody(controller: ControllerSocket, source: ControllerBatchSource) -> None:
    metrics = StepMetrics(scalars={"loss": 0.5})
    source.commit(5, metrics)
    assert await controller.receive() == (LEARNER, Commit(version=5, metrics=metrics))


async def test_a_refusal_ends_the_learner(controller: ControllerSocket, source: ControllerBatchSource) -> None:
    asked = asyncio.create_task(asyncio.to_thread(source.next_batch, 4))
    await controller.receive()
    await controller.send(LEARNER, Refused(reason="who are you"))
    with pytest.raises(ChannelError, match="who are you"):
        await asked
