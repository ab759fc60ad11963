"""A version is read beside everything else, and handed out only once it is whole."""

import threading
import time
from pathlib import Path

import pytest
import torch

from async_rl.errors import WeightsError
from async_rl.protocol import WeightManifest
from generators.weight_stage import WeightStage
from tests.generators.desk import make_published


class Subscriber:
    """Holds a reading until the test lets it go; version 1 cannot be read, version 2 breaks the reader."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def receive(self, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
        assert self.may_end.wait(5)
        if manifest.version == 1:
            raise WeightsError("version 1 has been overwritten")
        if manifest.version == 2:
            raise MemoryError
        return [("w", torch.full((2,), float(manifest.version)))]

    def close(self) -> None: ...


def read(stage: WeightStage, version: int) -> tuple[bool, str]:
    stage.begin(make_published(version).manifest, Path("base"))
    deadline = time.monotonic() + 5
    while not (answer := stage.poll())[0] and time.monotonic() < deadline:
        time.sleep(0.001)
    return answer


def test_polling_does_not_wait_for_the_reader() -> None:
    subscriber = Subscriber()
    stage = WeightStage(subscriber)
    stage.begin(make_published(3).manifest, Path("base"))
    assert stage.poll() == (False, "")
    subscriber.may_end.set()
    assert read(stage, 3) == (True, "")
    ((name, tensor),) = stage.take().tensors
    assert name == "w" and tensor.tolist() == [3.0, 3.0]


def test_an_unreadable_version_is_a_problem_in_words_and_the_next_one_is_read() -> None:
    subscriber = Subscriber()
    subscriber.may_end.set()
    stage = WeightStage(subscriber)
    assert read(stage, 1) == (True, "version 1 has been overwritten")
    with pytest.raises(WeightsError):
        stage.take()
    assert read(stage, 4) == (True, "")


def test_a_broken_reader_is_no_unreadable_version() -> None:
    subscriber = Subscriber()
    subscriber.may_end.set()
    with pytest.raises(MemoryError):
        read(WeightStage(subscriber), 2)


def test_a_version_is_taken_once() -> None:
    subscriber = Subscriber()
    subscriber.may_end.set()
    stage = WeightStage(subscriber)
    read(stage, 3)
    stage.take()
    with pytest.raises(AssertionError):
        stage.take()
