"""A learner of several ranks, and what becomes of a run when one of them dies."""

import os
import re
import signal
import time
from functools import partial

import pytest

from async_rl.weights.slots import NUM_SLOTS, SHARED_MEMORY
from tests.integration.conftest import RUN_TIMEOUT_S, Launch, RunProcess
from tests.integration.test_run import assert_nothing_is_left, metric

pytestmark = pytest.mark.integration

STEPS, GROUPS = 24, 4


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


def kill_in_a_step(run: RunProcess, rank: int) -> None:
    """Kill -9, once the others wait for the rank in a computation."""
    pid = run.pids(f"learner-{rank}")[-1]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(pid, signal.SIGKILL)


def is_training(run: RunProcess, *, lives: int, batches: int) -> bool:
    return len(run.pids("learner-0")) == lives and len(run.trained) >= batches


def test_any_rank_may_be_killed_the_run_goes_back_to_its_last_checkpoint_by_itself_and_says_so(launch: Launch) -> None:
    run = launch(steps=STEPS, learner__parallel__dp=2, checkpoint__every=4, generation__num_generators=2)
    for lives, rank in ((1, 1), (2, 0)):
        # Two engines and two ranks begin at once.
        run.until(partial(is_training, run, lives=lives, batches=1 + 5 * lives), timeout_s=RUN_TIMEOUT_S)
        kill_in_a_step(run, rank)
    run.until(partial(is_training, run, lives=3, batches=17), timeout_s=RUN_TIMEOUT_S)
    published = list(SHARED_MEMORY.glob(f"async-rl.run-{run.process.pid}.*"))
    assert len(published) == NUM_SLOTS, "what the dead published is in nobody's way"
    run.wait()
    told = [line for line in run.output.splitlines() if "the learner is started again from version" in line]
    assert len(told) == 2, run.output
    assert re.search(r"learner-1 died: .* from version (4|8) \(1 of 3 times\)", told[0]), told
    assert re.search(r"learner-0 died: .* from version (8|12|16) \(2 of 3 times\)", told[1]), told
    assert_every_group_trained_once(run)
    assert len(run.pids("learner-0")) == len(run.pids("learner-1")) == 3, "all ranks begin again together"
    assert len(run.pids("generator-0")) == len(run.pids("generator-1")) == 1, "generators live on"
    assert len(metric(run, "loss")) > STEPS, "what was undone stays in the metrics"


def test_two_ranks_that_share_each_matrix_train_what_two_generators_sample(launch: Launch) -> None:
    options = {"learner__parallel__tp": 2, "learner__parallel__sequence_parallel": True, "data__num_evaluate": 32}
    run = launch(steps=STEPS, generation__num_generators=2, staleness__max=0, staleness__depth=0, **options).wait()
    assert_every_group_trained_once(run)
    reward, mu_prox = run.summary.reward, run.summary.mu_prox.max_abs
    assert mu_prox is not None and mu_prox <= 1e-4, "engines sample with what the two ranks hold together"
    assert reward.start is not None and reward.end is not None and reward.end > reward.start + 0.1
