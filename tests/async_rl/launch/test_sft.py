"""A warm start as a user sees and keeps it; its training is tested with the learner."""

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from async_rl.launch.sft import SftWatcher
from async_rl.terminal.sft_view import SftView
from async_rl.tracking.sink import MetricsSink
from learner.backend import StepResult


@pytest.fixture
def shown() -> StringIO:
    return StringIO()


@pytest.fixture
def watcher(tmp_path: Path, shown: StringIO) -> Iterator[SftWatcher]:
    sink = MetricsSink(metrics=tmp_path / "metrics.jsonl", aim_repo=None, name="it", params={}, run_hash=None)
    watcher = SftWatcher(SftView(Console(file=shown, width=100), steps=2), sink)
    yield watcher
    watcher.close()


def test_each_step_and_validation_is_kept_by_its_documented_name(
    watcher: SftWatcher, tmp_path: Path, repository: Path
) -> None:
    watcher.stepped(1, StepResult(loss=0.5, grad_norm=2.0, lr=0.125, skipped=False), 100)
    watcher.validated(1, 0.25)
    step, validation = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert step["step"] == validation["step"] == 1
    assert step["scalars"]["sft/loss"] == 0.5 and step["scalars"]["sft/tokens_per_s"] > 0
    assert validation["scalars"] == {"sft/validation_loss": 0.25}
    documented = (repository / "docs/metrics.md").read_text()
    assert all(f"`{name}`" in documented for name in step["scalars"] | validation["scalars"])


def test_without_a_terminal_the_last_step_and_every_message_is_a_line(watcher: SftWatcher, shown: StringIO) -> None:
    watcher.said("3 of 9 prompts are [too] long")
    for step in (1, 2):
        watcher.stepped(step, StepResult(loss=0.5, grad_norm=2.0, lr=0.125, skipped=False), 100)
    watcher.validated(2, 0.25)
    first, second, third = shown.getvalue().splitlines()
    assert first == "3 of 9 prompts are [too] long"
    assert second.startswith("step 2/2  loss 0.5000  lr 1.2e-01")
    assert third == "step 2/2  validation loss 0.2500"
