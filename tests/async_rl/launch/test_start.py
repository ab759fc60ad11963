"""Where a run begins, and what becomes of an earlier one."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from async_rl.checkpoints import LoopState
from async_rl.config.compose import load_run_config
from async_rl.config.schema import RunConfig
from async_rl.errors import ConfigError, DamagedCheckpoint
from async_rl.launch.start import Resume, begin, check_unfinished
from async_rl.ledger import LedgerSnapshot
from tests.async_rl.launch.earlier import checkpoint, said


def test_a_new_run_begins_at_version_0_with_its_config_beside_it(config: RunConfig, console: Console) -> None:
    start = begin(config, Resume.NEVER, console)
    assert (start.version, start.trained_tokens, start.checkpoint) == (0, 0, None)
    assert load_run_config(start.folder.config) == config
    assert start.folder.journal.is_dir() and start.folder.checkpoints.is_dir()
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


def test_a_checkpoint_with_a_file_that_was_cut_is_passed_over(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    older, newest = checkpoint(config, 8), checkpoint(config, 10)
    (newest / "learner" / "weights").write_text("of")
    start = begin(config, Resume.AUTO, console)
    assert (start.version, start.checkpoint) == (8, older)
    assert f"{newest} is damaged: learner/weights has 2 bytes and was written with 5. It was moved to" in said(console)
    assert (newest.parent / "damaged-00000010" / "loop.json").is_file()


def test_a_run_whose_only_checkpoint_is_damaged_is_not_begun_anew(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    only = checkpoint(config, 8)
    (only / "learner" / "weights").unlink()
    with pytest.raises(DamagedCheckpoint, match="weights cannot be read") as caught:
        begin(config, Resume.AUTO, console)
    assert caught.value.remedy == "there is no older checkpoint: begin anew with --resume never"
    assert only.is_dir()


def test_without_resume_a_run_with_checkpoints_is_set_aside(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    checkpoint(config, 8)
    assert begin(config, Resume.NEVER, console).version == 0


def test_a_run_of_other_prompts_is_not_gone_on_with(config: RunConfig, console: Console) -> None:
    begin(config, Resume.NEVER, console)
    checkpoint(config, 8)
    with pytest.raises(ConfigError, match="seed=7 was 0"):
        begin(replace(config, seed=7), Resume.AUTO, console)


def test_a_finished_run_is_not_gone_on_with() -> None:
    config = RunConfig(steps=4)
    counts = LedgerSnapshot(issued=0, ended={}, live_failures={})
    state = LoopState(version=4, ledger=counts, trained_tokens=1, next_evaluation_id=0, run_hash=None)
    with pytest.raises(ConfigError, match=r"version 4 already, and steps=4"):
        check_unfinished(state, config)
    check_unfinished(state, replace(config, steps=5))
