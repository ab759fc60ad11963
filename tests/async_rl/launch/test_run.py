"""Where a run begins, and what its two signals do. Whole runs are in tests/integration."""

import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from async_rl.checkpoints import Checkpoints, LoopState
from async_rl.config.compose import load_run_config
from async_rl.config.schema import DataConfig, ModelConfig, RewardConfig, RunConfig, TrackingConfig
from async_rl.controller.controller import Controller, Phase
from async_rl.errors import ConfigError
from async_rl.launch.preflight import Preflight
from async_rl.launch.run import Interrupted, Resume, Run, begin, places
from async_rl.ledger import LedgerSnapshot
from async_rl.run_folder import RunFolder
from async_rl.summary import Exit
from async_rl.terminal.plain_view import PlainView


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(
        name="it",
        runs_dir=str(tmp_path),
        model=ModelConfig(path="models/it"),
        data=DataConfig(task="async_rl.data.tasks.addition:Addition"),
        reward=RewardConfig(function="async_rl.data.tasks.exact_match:reward"),
    )


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=400)


def said(console: Console) -> str:
    return cast(StringIO, console.file).getvalue()


def checkpoint(config: RunConfig, version: int) -> Path:
    """What a run leaves of itself."""
    folder = RunFolder(Path(config.runs_dir, config.name)).checkpoints
    part = folder / f".writing-{version:08d}"
    (part / "learner").mkdir(parents=True)
    snapshot = LedgerSnapshot(issued=40, ended={"trained": 32}, live_failures=dict.fromkeys(range(32, 40), 0))
    state = LoopState(version=version, ledger=snapshot, trained_tokens=99, next_evaluation_id=8, run_hash="abc")
    return Checkpoints(folder, config.checkpoint.keep).complete(part, state)


def test_a_new_run_begins_at_version_0_with_its_config_beside_it(config: RunConfig, console: Console) -> None:
    start = begin(config, Resume.NEVER, console)
    assert (start.version, start.trained_tokens, start.checkpoint) == (0, 0, None)
    assert load_run_config(start.folder.config) == config
    assert said(console) == ""


@pytest.mark.parametrize("resume", Resume)
def test_an_earlier_run_without_a_checkpoint_is_set_aside(config: RunConfig, console: Console, resume: Resume) -> None:
    begin(config, Resume.NEVER, console).folder.summary.write_text("earlier")
    start = begin(config, resume, console)
    assert start.version == 0 and not start.folder.summary.exists()
    assert "An earlier run of this name was moved to" in said(console)
    assert len(list(Path(config.runs_dir).glob("it.*/summary.json"))) == 1


def test_resume_auto_goes_on_from_the_newest_checkpoint(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    checkpoint(config, 8)
    newest = checkpoint(config, 10)
    half_written = newest.parent / ".writing-00000012"
    half_written.mkdir()
    start = begin(replace(config, steps=500), Resume.AUTO, console)
    assert (start.version, start.trained_tokens, start.checkpoint) == (10, 99, newest)
    assert "Going on from version 10" in said(console)
    assert not half_written.exists()
    assert load_run_config(start.folder.config).steps == 500


def test_without_resume_a_run_with_checkpoints_is_set_aside(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    checkpoint(config, 8)
    assert begin(config, Resume.NEVER, console).version == 0


def test_a_run_of_other_prompts_is_not_gone_on_with(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    checkpoint(config, 8)
    with pytest.raises(ConfigError, match="seed=7 was 0"):
        begin(replace(config, seed=7), Resume.AUTO, console)


def test_places_are_those_that_exist(config: RunConfig, console: Console) -> None:
    folder = begin(config, Resume.NEVER, console).folder
    empty = places(replace(config, tracking=TrackingConfig(aim=False)), folder)
    assert (empty.checkpoint, empty.model, empty.dashboard) == ("", "", "")
    folder.model.mkdir()
    made = checkpoint(config, 3)
    full = places(config, folder)
    assert (full.run, full.checkpoint, full.model) == (str(folder.path), str(made), str(folder.model))
    assert full.dashboard == f"async-rl dashboard --repo {config.runs_dir}"


class Asked:
    """What signals ask of a controller."""

    def __init__(self, phase: Phase = Phase.TRAINING) -> None:
        self.phase = phase
        self.stops: list[str] = []
        self.failures: list[Exception] = []

    def stop(self, reason: str) -> None:
        self.stops.append(reason)

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


def make_run(config: RunConfig, console: Console, resume: Resume = Resume.NEVER) -> Run:
    found = Preflight(prompts=[], held_out=[], messages=[])
    return Run(config, start=begin(config, resume, console), found=found, view=PlainView(console))


def test_the_first_signal_asks_for_an_end_and_the_second_does_not_wait(config: RunConfig, console: Console) -> None:
    run, controller = make_run(config, console), Asked()
    run._on_signal(cast(Controller, controller), signal.SIGINT)
    assert len(controller.stops) == 1 and "SIGINT" in controller.stops[0]
    assert controller.failures == []
    run._on_signal(cast(Controller, controller), signal.SIGTERM)
    assert [type(e) for e in controller.failures] == [Interrupted]


def test_before_training_there_is_nothing_to_wait_for(config: RunConfig, console: Console) -> None:
    run, controller = make_run(config, console), Asked(Phase.STARTING)
    run._on_signal(cast(Controller, controller), signal.SIGINT)
    assert controller.stops == []
    assert [type(e) for e in controller.failures] == [Interrupted]


def test_a_resumed_run_accounts_for_every_group_of_its_checkpoint(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    checkpoint(config, 10)
    summary = make_run(config, console, Resume.AUTO).summary(Exit.STOPPED)
    assert (summary.steps, summary.trained_tokens) == (10, 99)
    assert (summary.ledger.issued, summary.ledger.trained, summary.ledger.queued) == (40, 32, 8)
    assert summary.ledger.balanced
