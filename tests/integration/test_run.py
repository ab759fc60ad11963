"""Whole runs with real vLLM, Megatron, Ray, ZeroMQ and shared memory: the promises of the README, each as a test."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from transformers import AutoModelForCausalLM

from async_rl.data.sampler import PromptSampler
from async_rl.protocol import Prompt
from tests.integration.conftest import ASYNC_RL, Launch, RunProcess

pytestmark = pytest.mark.integration


def metric(run: RunProcess, name: str) -> list[float]:
    """A metric's values over the steps."""
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [r["scalars"][name] for r in records if name in r["scalars"]]


def is_at_work(run: RunProcess, generator: str) -> bool:
    """Whether a generator had requests in its engine when it last said so."""
    text = (run.folder / "metrics.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    running = [r["scalars"].get("generator/running_requests", 0) for r in records if r["subject"] == generator]
    return bool(running) and running[-1] > 0


def assert_nothing_is_left(run: RunProcess) -> None:
    """No process of the run, and no shared memory."""
    pids = [pid for log in (run.folder / "logs").glob("*-?.log") for pid in run.pids(log.stem)] + run.pids("tracker")
    deadline_s = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not [p.name for p in Path("/dev/shm").iterdir() if f"run-{run.process.pid}" in p.name]


def test_staleness_zero_is_synchronous_and_engine_and_learner_agree(launch: Launch) -> None:
    run = launch(staleness__max=0, staleness__depth=0, steps=12).wait()
    assert run.exit_code == 0, run.output
    assert run.summary.staleness.max == 0
    assert all(v == oldest for b in run.trained for v, oldest in [(b.version, min(b.oldest_versions))])
    assert run.summary.mu_prox.max_abs is not None and run.summary.mu_prox.max_abs <= 1e-4
    assert max(metric(run, "mu_prox/max_abs")) > 0, "two implementations never agree to the last bit"
    assert len(set(metric(run, "loss"))) > 1, "the weights did not move, so nothing was shown"
    assert_nothing_is_left(run)


def test_no_token_over_the_bound_trains_in_200_batches_with_updates_in_flight(launch: Launch) -> None:
    run = launch(staleness__max=4, staleness__depth=4, steps=200, learner__groups_per_step=2).wait()
    assert run.exit_code == 0, run.output
    assert len(run.trained) == 200
    staleness = [b.version - oldest for b in run.trained for oldest in b.oldest_versions]
    assert max(staleness) <= 4 and max(staleness) >= 2
    assert run.summary.staleness.max == max(staleness), "the learner's account and the controller's are two"
    assert max(metric(run, "staleness/mixed_share")) > 0, "no trajectory crossed an update"
    assert run.summary.ledger.balanced
    assert run.summary.ledger.trained == 400
    assert_nothing_is_left(run)


def test_a_killed_generator_is_replaced_and_every_group_accounted_for(launch: Launch) -> None:
    options = {"generation__num_generators": 2, "generation__max_new_tokens": 24, "tracking__interval_s": 0.2}
    run = launch(steps=200, **options)
    # Either may be the first to have loaded its engine: the one that is killed has to be at work.
    run.until(lambda: len(run.trained) >= 5 and is_at_work(run, "generator-0"))
    os.kill(run.pids("generator-0")[-1], signal.SIGKILL)
    run.wait()
    assert run.exit_code == 0, run.output
    assert "generator-0 is gone" in run.output
    ids = run.trained_ids
    assert len(ids) == len(set(ids)) == 800, "a group trained twice, or not at all"
    ledger = run.summary.ledger
    assert ledger.balanced and ledger.trained == 800
    assert ledger.issued == ledger.trained + ledger.stale + ledger.filtered + ledger.failed + ledger.queued
    assert_nothing_is_left(run)


def test_a_run_stopped_at_half_goes_on_with_exactly_the_prompts_not_trained(launch: Launch) -> None:
    steps, groups, prompts = 24, 4, 64
    options = {"steps": steps, "staleness__depth": 2, "learner__optimizer__schedule": "linear"}
    first = launch(**options)
    first.until(lambda: len(first.trained) >= steps // 2)
    first.interrupt()
    first.wait()
    assert first.exit_code == 130, first.output
    assert_nothing_is_left(first)
    half = first.trained
    assert 0 < len(half) < steps
    lr = metric(first, "lr")
    second = launch("--resume", "auto", **options).wait()
    assert second.exit_code == 0, second.output
    assert f"Going on from version {len(half)}" in second.output
    trained = second.trained
    assert trained[: len(half)] == half
    assert [b.version for b in trained] == list(range(steps))
    assert sorted(second.trained_ids) == list(range(steps * groups))
    order = PromptSampler(
        [Prompt(prompt_id=i, text="", token_ids=[1], answer="") for i in range(prompts)], seed=0, shuffle=True
    )
    assert all(
        prompt == order.prompt(group).prompt_id
        for b in trained
        for group, prompt in zip(b.group_ids, b.prompt_ids, strict=True)
    )
    later = metric(second, "lr")[len(lr) :]
    assert later and later[0] < lr[-1] and later[0] == pytest.approx(lr[-1] - (lr[0] - lr[1]), rel=1e-6)


def test_a_second_ctrl_c_stops_at_once(launch: Launch) -> None:
    run = launch(steps=1000)
    run.until(lambda: len(run.trained) >= 2)
    run.interrupt()
    run.interrupt()
    began_s = time.monotonic()
    run.wait(timeout_s=30)
    assert time.monotonic() - began_s < 20
    assert run.exit_code == 130, run.output
    assert "Traceback" not in run.output
    assert_nothing_is_left(run)


def test_a_ctrl_c_is_heard_while_the_run_starts_in_the_background_of_a_script(launch: Launch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = launch(steps=1000)
    finally:
        signal.signal(signal.SIGINT, before)
    run.until(lambda: (run.folder / "logs" / "controller.log").exists())
    run.interrupt()
    run.wait(timeout_s=60)
    assert run.exit_code == 130, run.output
    assert "Traceback" not in run.output
    assert_nothing_is_left(run)


def test_a_run_goes_on_without_its_tracker(launch: Launch) -> None:
    run = launch(steps=60)
    run.until(lambda: len(run.trained) >= 3)
    os.kill(run.pids("tracker")[-1], signal.SIGKILL)
    run.wait()
    assert run.exit_code == 0, run.output
    assert "The tracker failed: metrics go on in metrics.jsonl alone" in run.output
    assert len(metric(run, "loss")) >= 60, "a batch without metrics"
    assert_nothing_is_left(run)


def test_a_dead_learner_ends_the_run_which_says_how_to_go_on_and_its_checkpoint_can_be_exported(
    launch: Launch, tmp_path: Path
) -> None:
    run = launch(steps=1000, checkpoint__every=2, learner__max_restarts=0)
    run.until(lambda: (run.folder / "checkpoints" / "00000002" / "loop.json").exists())
    os.kill(run.pids("learner-0")[-1], signal.SIGKILL)
    run.wait(timeout_s=60)
    assert run.exit_code == 1, run.output
    assert "Traceback" not in run.output
    assert "The run could not go on: learner-0 died" in run.output
    assert f"Logs of every process: {run.folder / 'logs'}" in run.output
    assert "--resume auto" in run.output.split("To go on from version")[1]
    assert run.summary.exit == "failed" and run.summary.ledger.balanced
    assert_nothing_is_left(run)
    checkpoint = max((run.folder / "checkpoints").iterdir())
    exported = subprocess.run(
        [str(ASYNC_RL), "export", str(checkpoint), str(tmp_path / "out")], capture_output=True, text=True, timeout=120
    )
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout == f"The model is in {tmp_path / 'out'}\n"
    assert exported.stderr == ""
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").num_parameters() > 0
    assert sorted(p.name for p in tmp_path.glob(".*writing*")) == []
