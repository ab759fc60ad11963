"""A learner of several ranks, and what becomes of a run when one of them dies."""

import os
import signal

import pytest

from tests.integration.conftest import Launch, RunProcess
from tests.integration.test_run import assert_nothing_is_left, metric

pytestmark = pytest.mark.integration

STEPS, GROUPS = 40, 4


def assert_every_group_trained_once(run: RunProcess) -> None:
    """In the history that survived, with the ledger's equation whole."""
    assert run.exit_code == 0, run.output
    assert [batch.version for batch in run.trained] == list(range(STEPS))
    ids = run.trained_ids
    assert len(ids) == len(set(ids)) == STEPS * GROUPS, "a group trained twice, or not at all"
    summary = run.summary
    assert summary.exit == "completed" and summary.steps == STEPS
    assert summary.ledger.balanced and summary.ledger.trained == STEPS * GROUPS
    staleness = [b.version - oldest for b in run.trained for oldest in b.oldest_versions]
    assert summary.staleness.max == max(staleness) <= 4, "the learner's account and the controller's are two"
    assert_nothing_is_left(run)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_a_killed_learner_is_started_again_from_the_last_checkpoint_and_says_so(launch: Launch) -> None:
    run = launch(steps=STEPS, checkpoint__every=4, generation__num_generators=2)
    run.until(lambda: len(run.trained) >= 10)
    kill(run.pids("learner-0")[-1])
    run.until(lambda: len(run.pids("learner-0")) == 2)
    kept = max(int(p.name) for p in (run.folder / "checkpoints").iterdir() if p.name.isdigit())
    run.wait()
    assert f"the learner is started again from version {kept} (1 of 3 times)" in run.output
    assert_every_group_trained_once(run)
    assert len(run.pids("generator-0")) == len(run.pids("generator-1")) == 1, "generators live on"
    assert len(metric(run, "loss")) > STEPS, "what was undone stays in the metrics"
