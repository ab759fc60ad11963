"""A sound config, and what becomes of it with other options."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from async_rl.config.data import DataConfig
from async_rl.config.model import ModelConfig
from async_rl.config.reward import RewardConfig
from async_rl.config.rules import check_run
from async_rl.config.schema import RunConfig
from async_rl.errors import ConfigError

SOUND = RunConfig(
    model=ModelConfig(path="m"), data=DataConfig(task="tasks.py:Sum"), reward=RewardConfig(function="rewards.py:score")
)


def changed(config: Any, options: dict[str, object]) -> Any:
    """The same tree with other values, named by their paths."""
    for path, value in options.items():
        head, _, rest = path.partition(".")
        assert is_dataclass(config) and not isinstance(config, type)
        assert head in {f.name for f in fields(config)}, path
        config = replace(config, **{head: changed(getattr(config, head), {rest: value}) if rest else value})
    return config


def refusal(**options: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_run(changed(SOUND, {path.replace("__", "."): value for path, value in options.items()}))
    return caught.value


def accepted(**options: object) -> None:
    check_run(changed(SOUND, {path.replace("__", "."): value for path, value in options.items()}))
