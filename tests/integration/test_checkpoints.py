"""Checkpoints of whole runs: asked for by a signal, in time before the end, and passed over where they are damaged."""

import signal
import time
from pathlib import Path

import pytest

from async_rl.checkpoints import Checkpoints
from async_rl.checksums import damage
from tests.integration.conftest import RUN_TIMEOUT_S, Launch, RunProcess
from tests.integration.test_run import assert_nothing_is_left, metric

pytestmark = pytest.mark.integration

GROUPS = 4


def checkpoints(run: RunProcess) -> Checkpoints:
    return Checkpoints(run.folder / "checkpoints", keep=1)


def folder_of(run: RunProcess, version: int) -> Path:
    return run.folder / "checkpoints" / f"{version:08d}"


@pytest.mark.timeout(600)
def test_a_signal_asks_for_a_checkpoint_the_time_for_an_end_and_a_damaged_one_is_passed_over(launch: Launch) -> None:
    options = {"steps": 10_000, "checkpoint__every": 0, "checkpoint__keep": 3, "staleness__depth": 2}
    began_s = time.monotonic()
    first = launch(**options)
    first.until(lambda: len(first.trained) >= 3, timeout_s=RUN_TIMEOUT_S)
    start_s = time.monotonic() - began_s
    assert checkpoints(first).versions() == []
    first.process.send_signal(signal.SIGUSR1)
    first.until(lambda: checkpoints(first).versions() != [])
    (asked,) = checkpoints(first).versions()
    first.until(lambda: len(first.trained) > asked + 2)
    first.interrupt()
    first.wait()
    assert first.exit_code == 130, first.output
    assert "A checkpoint will be written after the next batch that begins." in first.output
    stopped = len(first.trained)
    assert checkpoints(first).versions() == [asked, stopped]
    assert len(metric(first, "learner/checkpoint_s")) == len(metric(first, "learner/checkpoint_write_s")) == 2

    limit_s = round(1.25 * start_s + 5)
    began_s = time.monotonic()
    second = launch("--resume", "auto", **options, checkpoint__walltime_s=limit_s).wait()
    assert time.monotonic() - began_s < 2 * limit_s, "the time, and leaving"
    assert second.exit_code == 130, second.output
    assert f"checkpoint.walltime_s={limit_s} is nearly over; --resume auto goes on" in second.output
    last = len(second.trained)
    assert last > stopped and checkpoints(second).versions() == [asked, stopped, last]
    assert all(damage(folder_of(second, version)) is None for version in (asked, stopped, last))

    shard = next(folder_of(second, last).glob("learner/*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    steps = last + 4
    third = launch("--resume", "auto", **options | {"steps": steps}).wait()
    assert third.exit_code == 0, third.output
    assert f"Going on from version {last}" in third.output
    assert f"{shard.name} is damaged: its checksum is not the one that was written" in third.output
    assert f"the run goes on from version {stopped}" in third.output
    assert [batch.version for batch in third.trained] == list(range(steps))
    ids = third.trained_ids
    assert len(ids) == len(set(ids)) == steps * GROUPS, "a group trained twice, or not at all"
    summary = third.summary
    assert summary.ledger.balanced and summary.ledger.trained == steps * GROUPS and summary.steps == steps
    assert (third.folder / "checkpoints" / f"damaged-{last:08d}").is_dir()
    assert_nothing_is_left(third)
