"""What a run's two signals do, and where what it made lies. Whole runs are in tests/integration."""

import signal
from dataclasses import replace
from typing import cast

from rich.console import Console

from async_rl.config.loop import TrackingConfig
from async_rl.config.schema import RunConfig
from async_rl.controller.controller import Controller, Phase
from async_rl.launch.preflight import Preflight
from async_rl.launch.run import Interrupted, Run, places
from async_rl.launch.start import Resume, begin
from async_rl.summary import Exit
from async_rl.terminal.plain_view import PlainView
from tests.async_rl.launch.earlier import checkpoint


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
    return Run(config, start=begin(config, resume, console), found=found, view=PlainView(console), began_s=0.0)


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
