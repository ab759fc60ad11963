"""Weights through files: what arrives is what was published, whole, or it is an error; nothing that is read goes."""

import errno
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

from async_rl.errors import ResourceError, WeightsError
from async_rl.protocol import TensorEntry, WeightManifest
from async_rl.weights import file
from async_rl.weights.file import FileWeightPublisher, FileWeightSubscriber, remove_versions
from async_rl.weights.payload import read_entry
from tests.async_rl.weights.weights import assert_same, weights


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[FileWeightPublisher]:
    made = FileWeightPublisher(tmp_path / "weights")
    yield made
    made.close()


def files(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[2] for path in (folder / "weights").iterdir())


def test_a_received_version_equals_the_published_one_bit_for_bit(publisher: FileWeightPublisher) -> None:
    subscriber = FileWeightSubscriber()
    for version in range(5):
        manifest = publisher.publish(version, weights(version))
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=WeightManifest)
        assert_same(subscriber.receive(copy), weights(version))
    subscriber.close()


def test_not_a_number_negative_zero_and_parameters_survive(publisher: FileWeightPublisher) -> None:
    odd = torch.nn.Parameter(torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]))
    ((_, received),) = FileWeightSubscriber().receive(publisher.publish(0, [("odd", odd)]))
    assert torch.equal(received.view(torch.int32), odd.detach().view(torch.int32)) and not received.requires_grad


def test_the_newest_two_versions_stay(publisher: FileWeightPublisher, tmp_path: Path) -> None:
    subscriber = FileWeightSubscriber()
    manifests = [publisher.publish(version, weights(version)) for version in range(4)]
    assert files(tmp_path) == ["3.weights", "4.weights"]
    for version in (2, 3):
        assert_same(subscriber.receive(manifests[version]), weights(version))
    with pytest.raises(WeightsError, match="version 1 is gone from"):
        subscriber.receive(manifests[1])
    assert files(tmp_path) == ["3.weights", "4.weights"]


def test_a_version_that_is_read_stays_until_it_has_been_read(
    publisher: FileWeightPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def slowly(fd: int, entry: TensorEntry, target: memoryview) -> bool:
        begun.set()
        assert may_go_on.wait(60)
        return read_entry(fd, entry, target)

    first = publisher.publish(0, weights(0))
    monkeypatch.setattr(file, "read_entry", slowly)
    received: list[tuple[str, torch.Tensor]] = []
    reader = threading.Thread(target=lambda: received.extend(FileWeightSubscriber().receive(first)))
    reader.start()
    assert begun.wait(60)
    for version in range(1, 5):
        publisher.publish(version, weights(version))
    assert [name for name in files(tmp_path) if name.endswith(".weights")] == ["1.weights", "4.weights", "5.weights"]
    may_go_on.set()
    reader.join()
    assert_same(received, weights(0))
    publisher.publish(5, weights(5))
    assert files(tmp_path) == ["5.weights", "6.weights"]


def test_a_dead_readers_marker_keeps_nothing(publisher: FileWeightPublisher, tmp_path: Path) -> None:
    first = Path(publisher.publish(0, weights(0)).location)
    marker = first.with_name(f"{first.name}.0a.reading")
    marker.touch()
    os.utime(marker, (1.0, first.stat().st_mtime - file.READER_TIMEOUT_S - 1))
    for version in range(1, 3):
        publisher.publish(version, weights(version))
    assert files(tmp_path) == ["2.weights", "3.weights"]


def test_a_long_read_renews_its_marker(
    publisher: FileWeightPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = publisher.publish(0, weights(0))
    monkeypatch.setattr(file, "RENEW_S", 0.0)

    def lose_marker(fd: int, entry: TensorEntry, target: memoryview) -> bool:
        (marker,) = (tmp_path / "weights").glob("*.reading")
        marker.unlink()
        return read_entry(fd, entry, target)

    monkeypatch.setattr(file, "read_entry", lose_marker)
    assert_same(FileWeightSubscriber().receive(manifest), weights(0))
    assert files(tmp_path) == ["1.weights"]


def test_a_publish_that_fails_midway_leaves_the_last_version_and_nothing_else(
    publisher: FileWeightPublisher, tmp_path: Path
) -> None:
    def fails() -> Iterator[tuple[str, torch.Tensor]]:
        yield weights(2)[0]
        raise RuntimeError("out of memory")

    good = publisher.publish(1, weights(1))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of memory"):
            publisher.publish(2, fails())
    with pytest.raises(WeightsError, match="weights travel as float32 or bfloat16"):
        publisher.publish(2, [("odd", torch.zeros(2, dtype=torch.int64))])
    assert files(tmp_path) == ["1.weights"]
    assert_same(FileWeightSubscriber().receive(good), weights(1))


def test_lazy_tensors_are_taken_one_by_one_and_their_time_is_reported_as_gathering(
    publisher: FileWeightPublisher,
) -> None:
    def gather() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights(1):
            threading.Event().wait(0.01)
            yield name, tensor

    manifest = publisher.publish(1, gather(), gather_s=2.0)
    assert 2.06 <= manifest.gather_s < 3.0
    assert 0 < manifest.transfer_s < 1.0


def test_every_flipped_byte_is_found_by_name(publisher: FileWeightPublisher) -> None:
    manifest = publisher.publish(0, weights(0))
    path = Path(manifest.location)
    whole = path.read_bytes()
    for entry in manifest.tensors:
        for at in (entry.offset, entry.offset + entry.num_bytes - 1) if entry.num_bytes else ():
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(WeightsError, match=f"is corrupt: {entry.name}"):
                FileWeightSubscriber().receive(manifest)
    path.write_bytes(whole)
    assert_same(FileWeightSubscriber().receive(manifest), weights(0))


def test_a_truncated_file_and_one_that_is_gone_are_errors(publisher: FileWeightPublisher) -> None:
    manifest = publisher.publish(0, weights(0))
    for size in (1000, 5, 0):
        os.truncate(manifest.location, size)
        with pytest.raises(WeightsError, match="truncated at"):
            FileWeightSubscriber().receive(manifest)
    with pytest.raises(WeightsError, match="not by file"):
        FileWeightSubscriber().receive(msgspec.structs.replace(manifest, transport="shm"))
    publisher.close()
    publisher.close()
    with pytest.raises(WeightsError, match="is gone from"):
        FileWeightSubscriber().receive(manifest)


def test_a_manifest_that_contradicts_itself_never_reaches_memory(publisher: FileWeightPublisher) -> None:
    manifest = publisher.publish(0, weights(0))
    entries = [msgspec.structs.replace(manifest.tensors[0], offset=2**40), *manifest.tensors[1:]]
    with pytest.raises(WeightsError, match="contradicts itself"):
        FileWeightSubscriber().receive(msgspec.structs.replace(manifest, tensors=entries))


def test_a_full_disk_is_said_with_its_place(publisher: FileWeightPublisher, tmp_path: Path) -> None:
    def until_full() -> Iterator[tuple[str, torch.Tensor]]:
        yield weights(0)[0]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ResourceError, match=r"GiB free: No space left on device") as caught:
        publisher.publish(0, until_full())
    assert caught.value.place == "weights.folder"
    assert files(tmp_path) == []


def test_what_a_killed_publisher_left_goes_with_the_next_ones_first_version(tmp_path: Path) -> None:
    dead = FileWeightPublisher(tmp_path / "weights")
    dead.publish(0, weights(0))
    (tmp_path / "weights" / "dead.9.part").write_bytes(b"half")
    living = FileWeightPublisher(tmp_path / "weights")
    manifest = living.publish(0, weights(1))
    assert files(tmp_path) == ["1.weights"]
    assert_same(FileWeightSubscriber().receive(manifest), weights(1))
    assert remove_versions(tmp_path / "weights") == [manifest.location]


PUBLISH_FOREVER = """
import sys, torch
from pathlib import Path
import msgspec
from async_rl.weights.file import FileWeightPublisher
publisher = FileWeightPublisher(Path(sys.argv[1]))
version = 0
while True:
    manifest = publisher.publish(version, [(f"t{i}", torch.full((200_000,), float(version))) for i in range(8)])
    print(msgspec.json.encode(manifest).decode(), flush=True)
    version += 1
"""


def test_readers_see_whole_versions_only_while_others_are_written_and_the_publisher_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PUBLISH_FOREVER, str(tmp_path / "weights")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    subscriber, whole = FileWeightSubscriber(), 0
    try:
        for number, line in enumerate(process.stdout):
            manifest = msgspec.json.decode(line, type=WeightManifest)
            for _ in range(3):
                try:
                    received = subscriber.receive(manifest)
                except WeightsError as error:
                    assert "is gone from" in str(error)
                    continue
                whole += 1
                assert all((tensor == manifest.version).all() for _, tensor in received)
            if number == 15:
                process.send_signal(signal.SIGKILL)
                break
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert whole > 0
