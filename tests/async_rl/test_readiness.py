from dataclasses import replace
from pathlib import Path

import pytest

from async_rl.config.schema import DataConfig, ModelConfig, RewardConfig, RunConfig
from async_rl.readiness import shortcomings


@pytest.fixture
def ready(tmp_path: Path) -> RunConfig:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("", encoding="utf-8")
    (tmp_path / "rewards.py").write_text("def score(*_): return 1.0\n", encoding="utf-8")
    return RunConfig(
        model=ModelConfig(path=str(tmp_path)),
        data=DataConfig(train=str(tmp_path / "rows.jsonl")),
        reward=RewardConfig(function=f"{tmp_path / 'rewards.py'}:score"),
    )


def test_nothing_is_missing_where_everything_is_there(ready: RunConfig) -> None:
    assert shortcomings(ready) == []


def test_everything_that_is_missing_is_named_at_once() -> None:
    config = RunConfig(
        model=ModelConfig(path="no/model"),
        data=DataConfig(train="no/rows.jsonl"),
        reward=RewardConfig(function="no/rewards.py:score"),
    )
    assert [(e.place, e.problem) for e in shortcomings(config)] == [
        ("model.path", "there is no model folder no/model"),
        ("data.train", "there is no file no/rows.jsonl"),
        ("reward.function", "there is no file no/rewards.py"),
    ]


def test_a_model_folder_whose_config_cannot_be_read(ready: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    (error,) = shortcomings(ready)
    assert error.place == "model.path"


def test_a_reward_or_a_task_that_does_not_import(ready: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    spec = f"{tmp_path / 'broken.py'}:score"
    (error,) = shortcomings(replace(ready, reward=RewardConfig(function=spec)))
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in error.problem
    (error,) = shortcomings(replace(ready, data=DataConfig(task=spec)))
    assert error.place == "data.task"
