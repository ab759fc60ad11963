"""What a launch would miss on this machine, found without loading anything heavy.

Owns the quick looks of `async-rl launch --dry-run`: files that are named exist, objects that are named import.
The launch itself looks closer. A dry run lists these without failing, since it may be meant for another machine.
"""

import json
from pathlib import Path

from async_rl.config.schema import RunConfig
from async_rl.errors import DataError, ModelError, RewardError, UserError
from async_rl.named_object import load_object


def shortcomings(config: RunConfig) -> list[UserError]:
    """What is missing or malformed, in the order of the config; empty if the launch may begin."""
    found = []
    for check in (_check_model, _check_data, _check_reward):
        try:
            check(config)
        except UserError as error:
            found.append(error)
    return found


def check_model_folder(folder: Path) -> None:
    """Raises a `ModelError` where there is no folder."""
    if not folder.is_dir():
        raise ModelError(
            f"there is no model folder {folder}",
            place="model.path",
            remedy="name a Hugging Face folder; `async-rl sft` makes one",
        )


def _check_model(config: RunConfig) -> None:
    folder = Path(config.model.path)
    check_model_folder(folder)
    path = folder / "config.json"
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read: {error}", place="model.path", remedy="name a folder with a config.json"
        ) from error


def _check_data(config: RunConfig) -> None:
    for option, name in (("data.train", config.data.train), ("data.evaluate", config.data.evaluate)):
        if name and not Path(name).is_file():
            raise DataError(
                f"there is no file {name}", place=option, remedy=f"give a path that exists, from {Path.cwd()}"
            )
    if config.data.task:
        load_object(
            config.data.task, kind="task", place="data.task", remedy="name a class of that module", error=DataError
        )


def _check_reward(config: RunConfig) -> None:
    load_object(
        config.reward.function,
        kind="reward function",
        place="reward.function",
        remedy="name a function of that module",
        error=RewardError,
    )
