"""Both ends of the channel over real TCP: the handshake, the refusals, and that nothing crashes the controller."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator

import pytest
import zmq
import zmq.asyncio

from async_rl.channel.codec import encode
from async_rl.channel.controller_socket import ControllerSocket
from async_rl.channel.peer_socket import BlockingPeerSocket, PeerSocket
from async_rl.errors import ChannelError, ResourceError
from async_rl.protocol import (
    SCHEMA_VERSION,
    Ack,
    BatchRequest,
    Credit,
    Delivery,
    End,
    Hello,
    Purpose,
    Refused,
    Role,
    Welcome,
)
from tests.async_rl.groups import make_group

LIMIT = 1 << 20


@pytest.fixture
async def controller() -> AsyncIterator[ControllerSocket]:
    socket_ = ControllerSocket("127.0.0.1", 0, max_message_bytes=LIMIT, epoch="e1")
    yield socket_
    socket_.close()


def hello(incarnation: str = "g0-a", *, schema_version: int = SCHEMA_VERSION, role: Role = Role.GENERATOR) -> Hello:
    return Hello(schema_version=schema_version, role=role, name="g0", incarnation=incarnation, pid=1, host="here")


async def connect(controller: ControllerSocket, incarnation: str = "g0-a") -> PeerSocket:
    peer = PeerSocket(controller.address, hello(incarnation), max_message_bytes=LIMIT)
    received = asyncio.create_task(controller.receive())
    await peer.connect(timeout_s=5)
    assert await received == (incarnation, hello(incarnation))
    return peer


async def raw(controller: ControllerSocket, identity: bytes, *frames: bytes) -> zmq.asyncio.Socket:
    """A peer that sends whatever it likes."""
    dealer: zmq.asyncio.Socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, identity)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(controller.address)
    await dealer.send_multipart(frames)
    return dealer


async def test_a_peer_that_says_hello_is_welcome_and_heard(controller: ControllerSocket) -> None:
    peer = await connect(controller)
    assert await peer.receive() == Welcome(epoch="e1")
    delivery = Delivery(purpose=Purpose.TRAIN, group=make_group(3, (1, 2)))
    await peer.send(delivery)
    sender, message = await controller.receive()
    assert (sender, message) == ("g0-a", delivery)
    ack = Ack(purpose=Purpose.TRAIN, group_id=3, attempt=0)
    assert await controller.send("g0-a", ack)
    assert await peer.receive() == ack
    peer.close()


async def test_a_blocking_peer_speaks_the_same_language(controller: ControllerSocket) -> None:
    peer = BlockingPeerSocket(controller.address, hello("learner-a", role=Role.LEARNER), max_message_bytes=LIMIT)
    received = asyncio.create_task(controller.receive())
    await asyncio.to_thread(peer.connect, 5.0)
    await received
    peer.send(BatchRequest(version=3))
    assert await controller.receive() == ("learner-a", BatchRequest(version=3))
    assert await asyncio.to_thread(peer.receive, 0.01) is None
    await controller.send("learner-a", End(reason="done", checkpoint=True))
    assert await asyncio.to_thread(peer.receive, 5.0) == End(reason="done", checkpoint=True)
    peer.close()


async def test_another_schema_is_refused_with_what_to_do(controller: ControllerSocket) -> None:
    stranger = PeerSocket(controller.address, hello(schema_version=99), max_message_bytes=LIMIT)
    receiving = asyncio.create_task(controller.receive())
    with pytest.raises(ChannelError, match=r"speaks schema 99.*install the same"):
        await stranger.connect(timeout_s=5)
    assert not receiving.done()
    receiving.cancel()
    stranger.close()


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"\xff\x00 not msgpack",),
        (encode(Credit(limit=1))[:-1],),
        (encode(Credit(limit=1)) + b"tail",),
        (b"\x81\xa4kind\xa7Unknown",),
        (encode(Credit(limit=1)), b"second"),
        (encode(Welcome(epoch="e1")),),
    ],
    ids=["empty", "noise", "truncated", "trailing", "unknown kind", "two frames", "a controller's message"],
)
async def test_a_malformed_frame_is_counted_and_the_next_good_one_heard(
    controller: ControllerSocket, frames: tuple[bytes, ...]
) -> None:
    peer = await connect(controller)
    dealer = await raw(controller, b"intruder", *frames)
    receiving = asyncio.create_task(controller.receive())
    while not controller.refusals["intruder"]:
        await asyncio.sleep(0.01)
    await peer.send(Credit(limit=7))
    assert await receiving == ("g0-a", Credit(limit=7))
    assert controller.refusals == {"intruder": 1}
    dealer.close()
    peer.close()


async def test_nobody_speaks_before_a_hello_or_in_the_name_of_another(controller: ControllerSocket) -> None:
    peer = await connect(controller)
    early = await raw(controller, b"early", encode(Credit(limit=1_000_000)))
    liar = await raw(controller, b"liar", encode(hello("g0-a")))
    receiving = asyncio.create_task(controller.receive())
    while set(controller.refusals) != {"early", "liar"}:
        await asyncio.sleep(0.01)
    assert not receiving.done()
    receiving.cancel()
    for end in (early, liar, peer):
        end.close()


async def test_a_huge_frame_is_refused_by_its_sender_and_cut_off_by_the_controller(
    controller: ControllerSocket,
) -> None:
    peer = await connect(controller)
    huge = Delivery(purpose=Purpose.TRAIN, group=make_group(0, tuple(range(100_000))))
    with pytest.raises(ChannelError, match=r"over channel\.max_message_mib=1: raise it"):
        await peer.send(huge)
    dealer = await raw(controller, b"intruder", encode(huge))
    receiving = asyncio.create_task(controller.receive())
    await asyncio.sleep(0.1)
    await peer.send(Credit(limit=7))
    assert await receiving == ("g0-a", Credit(limit=7))
    dealer.close()
    peer.close()


async def test_sending_to_the_dead_or_unknown_says_so(controller: ControllerSocket) -> None:
    peer = await connect(controller)
    peer.close()
    await asyncio.sleep(0.2)
    end = End(reason="over", checkpoint=False)
    assert not await controller.send("g0-a", end)
    assert not await controller.send("never seen", end)


async def test_a_peer_that_reads_nothing_never_holds_the_controller_up(controller: ControllerSocket) -> None:
    dealer = await raw(controller, b"slow", encode(hello("slow")))
    assert (await controller.receive())[0] == "slow"
    frame = encode(Refused(reason="x" * 100_000))
    async with asyncio.timeout(20):
        sent = [await controller.send_encoded("slow", frame) for _ in range(5000)]
    assert sum(sent) < 3000, "the queue of a peer is bounded"
    dealer.close()


async def test_no_controller_at_the_address_is_said_in_time() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    peer = PeerSocket(address, hello(), max_message_bytes=LIMIT)
    with pytest.raises(ChannelError, match="no controller answered"):
        await peer.connect(timeout_s=0.2)
    # What was never sent must not hold up the end of the process for ever.
    async with asyncio.timeout(10):
        await asyncio.to_thread(peer.close)


async def test_an_occupied_port_is_the_users_to_mend(controller: ControllerSocket) -> None:
    with pytest.raises(ResourceError, match=r"(?s)in use.*channel\.port.*another port"):
        ControllerSocket("127.0.0.1", port_of(controller), max_message_bytes=LIMIT, epoch="e2")


async def test_a_role_says_only_what_is_its_own(controller: ControllerSocket) -> None:
    peer = await connect(controller)
    receiving = asyncio.create_task(controller.receive())
    await peer.send(BatchRequest(version=0))
    await peer.send(Credit(limit=7))
    assert await receiving == ("g0-a", Credit(limit=7))
    assert controller.refusals == {"g0-a": 1}
    peer.close()


async def test_a_peer_says_hello_to_a_controller_that_was_started_again(controller: ControllerSocket) -> None:
    peer = await connect(controller)
    assert await peer.receive() == Welcome(epoch="e1")
    controller.close()
    again = ControllerSocket("127.0.0.1", port_of(controller), max_message_bytes=LIMIT, epoch="e2")
    receiving = asyncio.create_task(again.receive())
    # It knows nothing of the restart yet, so this is lost; what is not acked is sent again after the welcome.
    await peer.send(Credit(limit=1))
    async with asyncio.timeout(10):
        assert await peer.receive() == Welcome(epoch="e2")
        assert await receiving == ("g0-a", hello())
        await peer.send(Credit(limit=2))
        assert await again.receive() == ("g0-a", Credit(limit=2))
    peer.close()
    again.close()


async def test_a_waiting_learner_sees_that_the_controller_was_started_again(
    controller: ControllerSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("async_rl.channel.peer_socket.SILENCE_S", 0.2)
    peer = BlockingPeerSocket(controller.address, hello("l0-a", role=Role.LEARNER), max_message_bytes=LIMIT)
    receiving = asyncio.create_task(controller.receive())
    await asyncio.to_thread(peer.connect, 5.0)
    await receiving
    controller.close()
    again = ControllerSocket("127.0.0.1", port_of(controller), max_message_bytes=LIMIT, epoch="e2")
    receiving = asyncio.create_task(again.receive())
    with pytest.raises(ChannelError, match="was started again"):
        await asyncio.to_thread(peer.receive)
    await receiving
    peer.close()
    again.close()


def port_of(controller: ControllerSocket) -> int:
    return int(controller.address.rsplit(":", 1)[1])


async def test_a_connection_made_anew_takes_over_from_the_one_that_hangs(controller: ControllerSocket) -> None:
    hanging = await connect(controller)
    fresh = await connect(controller)
    end = End(reason="over", checkpoint=False)
    assert await fresh.receive() == Welcome(epoch="e1")
    assert await controller.send("g0-a", end)
    async with asyncio.timeout(5):
        assert await fresh.receive() == end
    hanging.close()
    fresh.close()


async def test_a_flood_of_nonsense_leaves_the_event_loop_its_turn(controller: ControllerSocket) -> None:
    peer = await connect(controller)
    receiving = asyncio.create_task(controller.receive())
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    flood = await asyncio.to_thread(flood_with, controller.address, 20_000)
    while controller.refusals["flood"] < 20_000:
        await asyncio.sleep(0.01)
    assert turns > 10_000
    await peer.send(Credit(limit=7))
    assert await receiving == ("g0-a", Credit(limit=7))
    counting.cancel()
    for end in (flood, peer):
        end.close()


def flood_with(address: str, count: int) -> "zmq.Socket[bytes]":
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, b"flood")
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(address)
    for _ in range(count):
        dealer.send(b"nonsense")
    return dealer


async def test_bytes_that_are_no_zeromq_do_no_harm(controller: ControllerSocket) -> None:
    peer = await connect(controller)
    receiving = asyncio.create_task(controller.receive())
    dice = random.Random(0)
    for size in (1, 11, 64, 100_000):
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(controller))
        writer.write(dice.randbytes(size))
        writer.close()
    await peer.send(Credit(limit=7))
    assert await receiving == ("g0-a", Credit(limit=7))
    peer.close()


async def test_frames_with_flipped_bytes_are_refused_or_still_messages_and_the_socket_lives(
    controller: ControllerSocket,
) -> None:
    peer = await connect(controller)
    frame = encode(Delivery(purpose=Purpose.TRAIN, group=make_group(3, (1, 2))))
    dice = random.Random(0)
    dealer = await raw(controller, b"fuzz", encode(hello("fuzz")))
    for _ in range(500):
        broken = bytearray(frame)
        for _ in range(dice.randint(1, 3)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        await dealer.send(bytes(broken[: dice.choice([len(broken), dice.randrange(len(broken))])]))
    await dealer.send(encode(Credit(limit=500)))
    heard = 0
    async with asyncio.timeout(20):
        while (await controller.receive()) != ("fuzz", Credit(limit=500)):
            heard += 1
    assert controller.refusals["fuzz"] + heard == 501
    assert controller.refusals["fuzz"] > 300
    for end in (dealer, peer):
        end.close()


async def test_a_closed_controller_gives_its_port_back_at_once(controller: ControllerSocket) -> None:
    controller.close()
    ControllerSocket("127.0.0.1", port_of(controller), max_message_bytes=LIMIT, epoch="e2").close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
async def test_a_host_that_is_not_this_machine_is_the_users_to_mend(host: str) -> None:
    with pytest.raises(ResourceError, match=rf"(?s)cannot bind {host}:0.*channel\.host"):
        ControllerSocket(host, 0, max_message_bytes=LIMIT, epoch="e1")
