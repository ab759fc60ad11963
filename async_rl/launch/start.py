"""Where a run begins: in a new folder, or at the newest checkpoint of an earlier run.

Owns what becomes of an earlier run of the same name. Starts nothing.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from async_rl.checkpoints import Checkpoints, LoopState, read_loop_state
from async_rl.config.compose import dump_config, load_run_config
from async_rl.config.resume_rules import check_resumable
from async_rl.config.schema import RunConfig
from async_rl.disk import writing
from async_rl.errors import ConfigError
from async_rl.run_folder import RunFolder


class Resume(StrEnum):
    """What becomes of an earlier run of the same name."""

    NEVER = "never"
    """It is set aside."""
    AUTO = "auto"
    """It goes on from its newest checkpoint; without one, as `NEVER`."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run begins."""

    folder: RunFolder
    checkpoint: Path | None
    state: LoopState | None

    @property
    def version(self) -> int:
        """The learner's version at the start."""
        return 0 if self.state is None else self.state.version

    @property
    def trained_tokens(self) -> int:
        """Trained before the start."""
        return 0 if self.state is None else self.state.trained_tokens


def folder_of(config: RunConfig) -> RunFolder:
    """Where a run of this config lies."""
    return RunFolder(Path(config.runs_dir).absolute() / config.name)


def begin(config: RunConfig, resume: Resume, console: Console) -> Start:
    """Makes the run's folder, or takes up an earlier one.

    Raises:
        UserError: the folder cannot be made, or the earlier run was of other prompts.
    """
    folder = folder_of(config)
    checkpoints = Checkpoints(folder.checkpoints, config.checkpoint.keep)
    checkpoint = checkpoints.latest if resume is Resume.AUTO else None
    if checkpoint is not None:
        check_resumable(load_run_config(folder.config), config)
        check_unfinished(read_loop_state(checkpoint), config)
    else:
        aside = folder.set_aside()
        if aside is not None:
            say(console, f"An earlier run of this name was moved to {aside} (--resume auto would go on with it).")
    folder.create(folder.journal, folder.checkpoints)
    checkpoints.remove_unfinished()
    with writing("the config", folder.config):
        folder.config.write_text(dump_config(config), encoding="utf-8")
    if checkpoint is None:
        return Start(folder=folder, checkpoint=None, state=None)
    state = read_loop_state(checkpoint)
    say(console, f"Going on from version {state.version} ({checkpoint}).")
    return Start(folder=folder, checkpoint=checkpoint, state=state)


def check_unfinished(state: LoopState, config: RunConfig) -> None:
    """Raises a `ConfigError` where nothing is left to train: an empty summary would be written over the run's."""
    if state.version >= config.steps:
        raise ConfigError(
            f"the run is at version {state.version} already, and steps={config.steps}",
            place="steps, --resume auto",
            remedy=f"raise steps above {state.version}, or choose another `name=…`",
        )


def say(console: Console, message: str) -> None:
    """Prints a line as it is: neither wrapped, nor read as markup."""
    console.print(Text(message), soft_wrap=True)
