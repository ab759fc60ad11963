"""Weights through shared memory: what arrives is what was published, whole, or it is an error."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_rl.errors import WeightsError
from async_rl.protocol import WeightManifest
from async_rl.weights.payload import lay_out
from async_rl.weights.shm import ShmWeightPublisher, ShmWeightSubscriber
from async_rl.weights.slots import HEADER_BYTES, remove_leftovers, remove_stale
from tests.async_rl.weights.weights import Tensors, assert_same, weights


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[ShmWeightPublisher]:
    made = ShmWeightPublisher("test", folder=tmp_path)
    yield made
    made.close()


def test_a_received_version_equals_the_published_one_bit_for_bit(publisher: ShmWeightPublisher) -> None:
    subscriber = ShmWeightSubscriber()
    for version in range(5):
        assert_same(subscriber.receive(publisher.publish(version, weights(version))), weights(version))


def test_not_a_number_and_negative_zero_survive(publisher: ShmWeightPublisher) -> None:
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    ((_, received),) = ShmWeightSubscriber().receive(publisher.publish(0, [("odd", odd)]))
    assert torch.equal(received.view(torch.int32), odd.view(torch.int32))


def test_parameters_that_require_gradients_are_published_as_plain_tensors(publisher: ShmWeightPublisher) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    ((_, received),) = ShmWeightSubscriber().receive(publisher.publish(0, [("p", parameter)]))
    assert not received.requires_grad and torch.equal(received, torch.ones(3))


def test_the_manifest_survives_the_wire(publisher: ShmWeightPublisher) -> None:
    manifest = publisher.publish(3, weights(3))
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=WeightManifest)
    assert_same(ShmWeightSubscriber().receive(copy), weights(3))


def test_a_version_stays_readable_through_the_next_publish_but_not_the_one_after(
    publisher: ShmWeightPublisher,
) -> None:
    subscriber = ShmWeightSubscriber()
    first = publisher.publish(1, weights(1))
    publisher.publish(2, weights(2))
    assert_same(subscriber.receive(first), weights(1))
    latest = publisher.publish(3, weights(3))
    with pytest.raises(WeightsError, match=r"version 1 .* overwritten"):
        subscriber.receive(first)
    assert_same(subscriber.receive(latest), weights(3))


def test_memory_is_allocated_once_and_used_again(publisher: ShmWeightPublisher, tmp_path: Path) -> None:
    subscriber = ShmWeightSubscriber()
    pointers = {subscriber.receive(publisher.publish(v, weights(v)))[0][1].data_ptr() for v in range(6)}
    assert len(pointers) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_lazy_tensors_are_taken_one_by_one_and_their_time_is_reported_as_gathering(
    publisher: ShmWeightPublisher,
) -> None:
    publisher.publish(0, weights(0))
    alive: list[int] = []

    def gather() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights(1):
            threading.Event().wait(0.01)
            alive.append(1)
            yield name, tensor

    manifest = publisher.publish(1, gather(), gather_s=2.0)
    assert len(alive) == 6
    assert 2.06 <= manifest.gather_s < 3.0
    assert 0 < manifest.transfer_s < 1.0


def test_a_publish_that_fails_midway_leaves_the_last_version_readable(publisher: ShmWeightPublisher) -> None:
    def fails() -> Iterator[tuple[str, torch.Tensor]]:
        yield weights(2)[0]
        raise RuntimeError("out of memory")

    subscriber = ShmWeightSubscriber()
    good = publisher.publish(1, weights(1))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of memory"):
            publisher.publish(2, fails())
        assert_same(subscriber.receive(good), weights(1))
    assert_same(subscriber.receive(publisher.publish(2, weights(2))), weights(2))
    assert_same(subscriber.receive(good), weights(1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([("embed", torch.zeros(5, 37))], "embed .* is not what the first version had"),
        ([("embedding", torch.zeros(37, 5))], "embedding .* is not what the first version had"),
        ([("embed", torch.zeros(37, 5, dtype=torch.bfloat16))], "is not what the first version had"),
        ([], "embed is missing"),
        ([("embed", torch.zeros(37, 5)), ("more", torch.zeros(1))], "more .* is not what the first version had"),
        ([("embed", torch.zeros(37, 5, dtype=torch.int64))], "weights travel as float32 or bfloat16"),
    ],
)
def test_a_version_of_another_layout_is_refused_by_name(
    publisher: ShmWeightPublisher, changed: Tensors, message: str
) -> None:
    publisher.publish(0, weights(0)[:1])
    with pytest.raises(WeightsError, match=message):
        publisher.publish(1, changed)


def test_every_flipped_byte_is_found_by_name(publisher: ShmWeightPublisher) -> None:
    manifest = publisher.publish(0, weights(0))
    for entry in manifest.tensors:
        if entry.num_bytes == 0:
            continue
        for at in (entry.offset, entry.offset + entry.num_bytes - 1):
            flip_byte(manifest, at)
            with pytest.raises(WeightsError, match=f"is corrupt: {entry.name}"):
                ShmWeightSubscriber().receive(manifest)
            flip_byte(manifest, at)
    assert_same(ShmWeightSubscriber().receive(manifest), weights(0))


def flip_byte(manifest: WeightManifest, at: int) -> None:
    with open(manifest.location, "r+b") as slot:
        slot.seek(HEADER_BYTES + at)
        byte = slot.read(1)[0]
        slot.seek(HEADER_BYTES + at)
        slot.write(bytes([byte ^ 1]))


def test_a_truncated_slot_is_an_error_not_a_signal(publisher: ShmWeightPublisher) -> None:
    manifest = publisher.publish(0, weights(0))
    for size in (HEADER_BYTES + 1000, HEADER_BYTES, 5, 0):
        os.truncate(manifest.location, size)
        with pytest.raises(WeightsError, match=r"truncated|no slot"):
            ShmWeightSubscriber().receive(manifest)


def test_a_missing_slot_and_a_foreign_file_are_errors(publisher: ShmWeightPublisher, tmp_path: Path) -> None:
    manifest = publisher.publish(0, weights(0))
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"x" * 10_000)
    with pytest.raises(WeightsError, match="no slot"):
        ShmWeightSubscriber().receive(msgspec.structs.replace(manifest, location=str(foreign)))
    with pytest.raises(WeightsError, match="not by shm"):
        ShmWeightSubscriber().receive(msgspec.structs.replace(manifest, transport="carrier pigeon"))
    publisher.close()
    with pytest.raises(WeightsError, match="is gone from"):
        ShmWeightSubscriber().receive(manifest)


@given(
    field=st.sampled_from(["offset", "num_bytes", "dtype", "shape"]),
    number=st.integers(-(2**62), 2**62),
    index=st.integers(0, 5),
)
def test_a_manifest_that_contradicts_itself_never_reaches_memory(
    tmp_path_factory: pytest.TempPathFactory, field: str, number: int, index: int
) -> None:
    entries = lay_out(weights(0))
    value: object = {"dtype": "float8", "shape": [number]}.get(field, number)
    if value == getattr(entries[index], field):
        return
    entries[index] = msgspec.structs.replace(entries[index], **{field: value})
    manifest = WeightManifest(
        version=0,
        transport="shm",
        location=str(tmp_path_factory.getbasetemp() / "nothing"),
        generation=1,
        tensors=entries,
        num_bytes=lay_out(weights(0))[-1].offset + lay_out(weights(0))[-1].num_bytes,
        gather_s=0.0,
        transfer_s=0.0,
    )
    with pytest.raises(WeightsError):
        ShmWeightSubscriber().receive(manifest)


READ_FOREVER = """
import sys, msgspec
from async_rl.protocol import WeightManifest
from async_rl.weights.shm import ShmWeightSubscriber
manifest = msgspec.json.decode(sys.argv[1], type=WeightManifest)
subscriber = ShmWeightSubscriber()
print("ready", flush=True)
while True:
    try:
        subscriber.receive(manifest)
    except Exception:
        pass
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reader_that_dies_or_hangs_midway_never_blocks_the_publisher(
    publisher: ShmWeightPublisher, sent: signal.Signals
) -> None:
    manifest = publisher.publish(0, weights(0))
    encoded = msgspec.json.encode(manifest).decode()
    reader = subprocess.Popen([sys.executable, "-c", READ_FOREVER, encoded], stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None and reader.stdout.readline() == b"ready\n"
        reader.send_signal(sent)
        for version in range(1, 6):
            manifest = publisher.publish(version, weights(version))
        assert_same(ShmWeightSubscriber().receive(manifest), weights(5))
    finally:
        reader.kill()
        reader.wait()
        assert reader.stdout is not None
        reader.stdout.close()


PUBLISH_FOREVER = """
import sys, torch
from pathlib import Path
import msgspec
from async_rl.weights.shm import ShmWeightPublisher
publisher = ShmWeightPublisher("killed", folder=Path(sys.argv[1]))
version = 0
while True:
    manifest = publisher.publish(version, [(f"t{i}", torch.full((500_000,), float(version))) for i in range(8)])
    print(msgspec.json.encode(manifest).decode(), flush=True)
    version += 1
"""


def test_readers_see_whole_versions_only_while_slots_are_overwritten_and_the_publisher_is_killed(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISH_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    subscriber = ShmWeightSubscriber()
    whole = lost = 0
    try:
        for number, line in enumerate(process.stdout):
            manifest = msgspec.json.decode(line, type=WeightManifest)
            # Read each manifest several times, so that many reads meet the overwriting publish.
            for _ in range(4):
                try:
                    received = subscriber.receive(manifest)
                except WeightsError:
                    lost += 1
                    continue
                whole += 1
                assert all((tensor == manifest.version).all() for _, tensor in received)
            if number == 40:
                process.kill()
                break
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert whole > 0 and lost > 0, (whole, lost)
    assert len(remove_stale(tmp_path)) == 2


def test_closing_gives_the_memory_back_and_may_happen_twice(tmp_path: Path) -> None:
    publisher = ShmWeightPublisher("test", folder=tmp_path)
    publisher.close()
    publisher = ShmWeightPublisher("test", folder=tmp_path)
    publisher.publish(0, weights(0))
    publisher.close()
    publisher.close()
    assert list(tmp_path.iterdir()) == []


def test_two_publishers_of_one_run_do_not_disturb_each_other(tmp_path: Path) -> None:
    first, second = ShmWeightPublisher("run", folder=tmp_path), ShmWeightPublisher("run", folder=tmp_path)
    old, new = first.publish(7, weights(7)), second.publish(7, weights(8))
    assert_same(ShmWeightSubscriber().receive(old), weights(7))
    assert_same(ShmWeightSubscriber().receive(new), weights(8))
    assert len(remove_leftovers("run", tmp_path)) == 4


def test_a_spawned_process_reads_from_the_real_shared_memory() -> None:
    publisher = ShmWeightPublisher(f"test-{os.getpid()}")
    try:
        manifest = publisher.publish(0, [("w", torch.arange(10.0))])
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(read_sum, (msgspec.json.encode(manifest),)) == 45.0
    finally:
        publisher.close()
    assert remove_leftovers(f"test-{os.getpid()}") == []


def read_sum(encoded: bytes) -> float:
    manifest = msgspec.json.decode(encoded, type=WeightManifest)
    ((_, tensor),) = ShmWeightSubscriber().receive(manifest)
    return float(tensor.sum())
