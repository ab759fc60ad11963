"""A fine-tuning as a user sees and keeps it; its training is tested with the learner."""

import json
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from async_rl.checkpoints import SftState
from async_rl.config.schema import SftConfig
from async_rl.launch.sft_watcher import SftWatcher
from async_rl.summary import Exit, StartEnd
from async_rl.terminal.sft_view import open_sft_view
from async_rl.tracking.sink import MetricsSink
from learner.backend import StepResult
from learner.sft_events import Began, Checkpointed, Said, Stepped, Validated

STATE = SftState(version=4, trained_tokens=100, run_hash=None)
STEP = Stepped(
    step=5,
    result=StepResult(loss=0.5, grad_norm=2.0, lr=0.125, skipped=False),
    num_tokens=100,
    num_learned=30,
    step_s=0.5,
    imbalance=1.25,
    mfu=0.4,
    memory_gib=1.5,
)
VALIDATED = Validated(step=6, loss=0.25, best_step=6, best_loss=0.25)


@pytest.fixture
def shown() -> StringIO:
    return StringIO()


@pytest.fixture
def watcher(tmp_path: Path, shown: StringIO) -> Iterator[SftWatcher]:
    sink = MetricsSink(metrics=tmp_path / "metrics.jsonl", aim_repo=None, name="it", params={}, run_hash=None)
    view, ticks = open_sft_view(Console(file=shown, width=100)), iter(range(0, 1000, 10))
    watcher = SftWatcher(SftConfig(steps=6), STATE, view=view, sink=sink, clock=lambda: next(ticks))
    yield watcher
    watcher.close()


def test_each_number_is_kept_by_its_documented_name(watcher: SftWatcher, tmp_path: Path, repository: Path) -> None:
    watcher.tell(STEP)
    watcher.tell(VALIDATED)
    step, validation = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (step["step"], validation["step"]) == (5, 6)
    assert step["scalars"] == {
        "sft/loss": 0.5,
        "sft/grad_norm": 2.0,
        "sft/lr": 0.125,
        "sft/skipped": 0.0,
        "sft/step_s": 0.5,
        "sft/tokens": 100.0,
        "sft/learned_tokens": 30.0,
        "sft/tokens_per_s": 200.0,
        "sft/imbalance": 1.25,
        "sft/memory_gib": 1.5,
        "sft/mfu": 0.4,
    }
    assert validation["scalars"] == {"sft/validation_loss": 0.25}
    documented = (repository / "docs/metrics.md").read_text()
    assert all(f"`{name}`" in documented for name in step["scalars"] | validation["scalars"])


def test_without_a_terminal_there_are_lines(watcher: SftWatcher, shown: StringIO) -> None:
    watcher.tell(Said(message="3 of 9 rows are [too] long"))
    watcher.tell(Began(num_examples=1234, num_held_out=56, num_ranks=2))
    watcher.tell(STEP)
    watcher.tell(replace(STEP, step=6))
    watcher.tell(VALIDATED)
    watcher.tell(Checkpointed(step=6, folder="runs/it/checkpoints/00000006", stood_s=0.25, write_s=2.0))
    assert shown.getvalue().splitlines() == [
        "3 of 9 rows are [too] long",
        "Training on 1,234 rows, 56 held out.",
        "step 5/6  loss 0.5000  lr 1.2e-01  200 tok/s  MFU 40.0%  left 0:10",
        "step 6/6  loss 0.5000  lr 1.2e-01  200 tok/s  MFU 40.0%",
        "step 6/6  validation loss 0.2500",
    ]


def test_the_summary_is_of_the_whole_run_where_that_can_be_counted(watcher: SftWatcher) -> None:
    watcher.tell(Began(num_examples=9, num_held_out=3, num_ranks=1))
    watcher.tell(STEP)
    watcher.tell(replace(STEP, step=6, result=replace(STEP.result, loss=0.3), step_s=1.5, mfu=0.2, memory_gib=2.0))
    watcher.tell(VALIDATED)
    summary = watcher.summary(Exit.COMPLETED)
    assert (summary.steps, summary.trained_tokens, summary.wall_s) == (6, 160, 30.0)
    assert summary.loss == StartEnd(start=0.5, end=0.3)
    assert summary.validation == StartEnd(start=0.25, end=0.25)
    assert (summary.best_validation.loss, summary.best_validation.step) == (0.25, 6)
    assert (summary.tokens_per_s, summary.memory_gib) == (100.0, 2.0)
    assert summary.mfu == pytest.approx((0.4 * 0.5 + 0.2 * 1.5) / 2)


def test_a_run_that_ended_before_its_first_step_has_a_summary(watcher: SftWatcher) -> None:
    summary = watcher.summary(Exit.FAILED)
    assert (summary.steps, summary.tokens_per_s, summary.mfu, summary.loss.start) == (4, None, None, None)
    assert json.loads(summary.to_json())["exit"] == "failed"
