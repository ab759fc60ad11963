"""Where a run begins: in a new folder, or at the newest checkpoint of an earlier run.

Owns what becomes of an earlier run of the same name. Starts nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from async_rl.checkpoints import Checkpoints, LoopState, SftState, TrainingState, read_loop_state, read_state
from async_rl.checksums import torn
from async_rl.config.compose import dump_config, load_run_config, load_sft_config
from async_rl.config.resume_rules import check_resumable, check_sft_resumable
from async_rl.config.schema import RunConfig, SftConfig
from async_rl.disk import writing
from async_rl.errors import ConfigError
from async_rl.run_folder import RunFolder


class Resume(StrEnum):
    """What becomes of an earlier run of the same name."""

    NEVER = "never"
    """It is set aside."""
    AUTO = "auto"
    """It goes on from its newest checkpoint that is whole; without any, as `NEVER`."""


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


def folder_of(config: RunConfig | SftConfig) -> RunFolder:
    """Where a run of this config lies."""
    return RunFolder(Path(config.runs_dir).absolute() / config.name)


def begin(config: RunConfig, resume: Resume, console: Console) -> Start:
    """Makes the run's folder, or takes up an earlier one.

    Raises:
        UserError: the folder cannot be made, or the earlier run was of other prompts.
    """

    def check(folder: RunFolder, checkpoint: Path) -> None:
        check_resumable(load_run_config(folder.config), config)
        check_unfinished(read_loop_state(checkpoint), config)

    folder = folder_of(config)
    checkpoint = take_up(config, resume, console, check=check, parts=[folder.journal, folder.checkpoints])
    state = None if checkpoint is None else read_loop_state(checkpoint)
    return Start(folder=folder, checkpoint=checkpoint, state=state)


def begin_sft(config: SftConfig, resume: Resume, console: Console) -> Path | None:
    """The same of a fine-tuning; returns the checkpoint to go on from."""

    def check(folder: RunFolder, checkpoint: Path) -> None:
        check_sft_resumable(load_sft_config(folder.config), config)
        check_unfinished(read_state(checkpoint, SftState), config)

    return take_up(config, resume, console, check=check, parts=[folder_of(config).checkpoints])


def take_up(
    config: RunConfig | SftConfig,
    resume: Resume,
    console: Console,
    *,
    check: Callable[[RunFolder, Path], None],
    parts: Sequence[Path],
) -> Path | None:
    """Makes the run's folder, with its `parts`, or takes up an earlier one; returns the checkpoint to go on from.

    Args:
        check: raises where an earlier run cannot go on from its newest checkpoint.
    """
    folder = folder_of(config)
    checkpoints = Checkpoints(folder.checkpoints, config.checkpoint.keep)
    checkpoint = newest_whole(checkpoints, console) if resume is Resume.AUTO else None
    if checkpoint is not None:
        check(folder, checkpoint)
    else:
        aside = folder.set_aside()
        if aside is not None:
            say(console, f"An earlier run of this name was moved to {aside} (--resume auto would go on with it).")
    folder.create(*parts)
    checkpoints.remove_unfinished()
    with writing("the config", folder.config):
        folder.config.write_text(dump_config(config), encoding="utf-8")
    if checkpoint is not None:
        say(console, f"Going on from version {int(checkpoint.name)} ({checkpoint}).")
    return checkpoint


def newest_whole(checkpoints: Checkpoints, console: Console) -> Path | None:
    """The newest checkpoint whose files are all there, whatever is in them; damaged ones are set aside.

    Raises:
        DamagedCheckpoint: there are checkpoints, and none is whole.
    """
    while (checkpoint := checkpoints.latest) is not None and (damage := torn(checkpoint)) is not None:
        error = checkpoints.refusal(checkpoint, damage)
        aside = checkpoints.pass_over(checkpoint)
        if aside is None:
            raise error
        say(console, f"{capitalized(error.problem)}. It was moved to {aside}, and an older one is taken.")
    return checkpoint


def capitalized(problem: str) -> str:
    """An error's problem as the beginning of a sentence."""
    return problem[:1].upper() + problem[1:]


def check_unfinished(state: TrainingState, config: RunConfig | SftConfig) -> None:
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
