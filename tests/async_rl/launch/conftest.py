"""A config without mistakes, and a console that can be read."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from async_rl.config.data import DataConfig
from async_rl.config.model import ModelConfig
from async_rl.config.reward import RewardConfig
from async_rl.config.schema import RunConfig


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
