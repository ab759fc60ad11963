"""Checkpoints beside training: of the moment at which they began, one at a time, and nothing that fails is silent."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from async_rl.checksums import Checksum, damage
from async_rl.errors import ResourceError
from learner.checkpoint_writer import CheckpointWriter, WriteTimes
from learner.training_snapshot import TrainingSnapshot


class Words:
    """A snapshot that is written once it may."""

    def __init__(self, words: str, may: threading.Event) -> None:
        self._words = words
        self._may = may

    def write(self, folder: Path) -> Mapping[str, Checksum]:
        assert self._may.wait(10.0)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "words").write_text(self._words)
        return {"words": Checksum.of(folder / "words")}


def snapshot(words: str, may: threading.Event, *, is_speaker: bool = True) -> TrainingSnapshot:
    return TrainingSnapshot(models={"learner": Words(words, may)}, files={"kl.json": b"{}"}, is_speaker=is_speaker)


def passed() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_waits_for_it(tmp_path: Path) -> None:
    writer, may, done = CheckpointWriter(), threading.Event(), list[str]()
    writer.begin(lambda: snapshot("first", may), tmp_path / "1", lambda times: done.append("1"))
    assert not (tmp_path / "1").exists() and done == []
    threading.Timer(0.05, may.set).start()
    writer.begin(lambda: snapshot("second", passed()), tmp_path / "2", lambda times: done.append("2"))
    assert done[0] == "1" and (tmp_path / "1" / "learner" / "words").read_text() == "first"
    writer.finish()
    assert done == ["1", "2"]
    writer.finish()


def test_what_was_written_has_a_manifest_by_the_rank_that_speaks(tmp_path: Path) -> None:
    snapshot("all", passed()).write(tmp_path / "speaker")
    assert damage(tmp_path / "speaker") is None
    snapshot("all", passed(), is_speaker=False).write(tmp_path / "other")
    assert sorted(p.name for p in (tmp_path / "other").iterdir()) == ["learner"]


def test_the_time_that_training_stood_still_is_told_apart(tmp_path: Path) -> None:
    times: list[WriteTimes] = []
    ticks = iter([0.0, 1.0, 4.0, 10.0, 13.0, 20.0])
    writer = CheckpointWriter(lambda: next(ticks))
    for name in "ab":
        writer.begin(lambda: snapshot("", passed()), tmp_path / name, times.append)
        writer.finish()
    assert times == [WriteTimes(stood_s=1.0, write_s=3.0), WriteTimes(stood_s=3.0, write_s=7.0)]


@pytest.mark.parametrize("how", ["at the end", "at the next"])
def test_an_error_of_the_thread_is_raised_once_by_whoever_waits_for_it(tmp_path: Path, how: str) -> None:
    writer = CheckpointWriter()

    def fail(times: WriteTimes) -> None:
        raise ResourceError("the disk is full", place="here", remedy="free some")

    writer.begin(lambda: snapshot("", passed()), tmp_path / "0", fail)
    with pytest.raises(ResourceError, match="the disk is full"):
        if how == "at the end":
            writer.finish()
        else:
            writer.begin(lambda: snapshot("", passed()), tmp_path / "2", lambda times: None)
    writer.finish()
