import json
from dataclasses import replace
from pathlib import Path

import pytest

from async_rl.config.data import DataConfig
from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import CriticConfig
from async_rl.config.loop import ClusterConfig
from async_rl.config.model import ModelConfig
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.objective import AdvantageConfig, Estimator
from async_rl.config.parallel import ParallelConfig
from async_rl.config.reward import RewardConfig, RewardModelConfig
from async_rl.config.schema import RunConfig
from async_rl.errors import UserError
from async_rl.readiness import Rows, readiness_of

CONFIG_JSON = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
SIZES = ModelSizes(
    num_layers=3,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    vocab_size=100,
    tie_embeddings=True,
)


@pytest.fixture
def ready(tmp_path: Path) -> RunConfig:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_JSON), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 3, encoding="utf-8")
    (tmp_path / "rewards.py").write_text("def score(*_): return 1.0\n", encoding="utf-8")
    return RunConfig(
        model=ModelConfig(path=str(tmp_path)),
        data=DataConfig(train=str(tmp_path / "rows.jsonl")),
        reward=RewardConfig(function=f"{tmp_path / 'rewards.py'}:score"),
    )


def missing(config: RunConfig) -> list[UserError]:
    return readiness_of(config).missing


def test_nothing_is_missing_where_everything_is_there(ready: RunConfig) -> None:
    found = readiness_of(ready)
    assert (found.missing, found.rows) == ([], Rows(train=3, held_out=0))


def test_everything_that_is_missing_is_named_at_once() -> None:
    config = RunConfig(
        model=ModelConfig(path="no/model"),
        data=DataConfig(train="no/rows.jsonl"),
        reward=RewardConfig(function="no/rewards.py:score"),
    )
    assert [(e.place, e.problem) for e in missing(config)] == [
        ("model.path", "there is no model folder no/model"),
        ("data.train", "there is no file no/rows.jsonl"),
        ("reward.function", "there is no file no/rewards.py"),
    ]


def test_a_model_folder_whose_config_cannot_be_read(ready: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    (error,) = missing(ready)
    assert error.place == "model.path"


def test_a_model_folder_without_weights_or_with_too_few_positions(ready: RunConfig, tmp_path: Path) -> None:
    (error,) = missing(replace(ready, generation=GenerationConfig(max_model_len=1024)))
    assert error.problem == "generation.max_model_len=1024, but the model has 512 positions"
    (tmp_path / "model.safetensors").unlink()
    (error,) = missing(ready)
    assert error.problem == f"{tmp_path} holds no weights"


def test_rows_that_cannot_be_read_are_not_counted(ready: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1="}\n', encoding="utf-8")
    found = readiness_of(ready)
    assert [error.place for error in found.missing] == ["data.train, data.answer_column"]
    assert found.rows is None


def test_keys_and_values_larger_than_the_machine_are_refused_where_it_is_this_machines_memory(
    ready: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("async_rl.readiness.GPU_DRIVER", Path("/nowhere"))
    huge = replace(ready, generation=GenerationConfig(kv_cache_gib=2.0**20, num_generators=2))
    (error,) = missing(huge)
    assert error.problem.startswith("keys and values of 2 engines need 2,097,152.0 GiB, and this machine has ")
    assert missing(replace(huge, cluster=ClusterConfig(address="elsewhere:6379"))) == []
    monkeypatch.setattr("async_rl.readiness.GPU_DRIVER", Path("/dev/null"))
    assert missing(huge) == []


def test_a_reward_or_a_task_that_does_not_import(ready: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    spec = f"{tmp_path / 'broken.py'}:score"
    (error,) = missing(replace(ready, reward=RewardConfig(function=spec)))
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in error.problem
    (error,) = missing(replace(ready, data=DataConfig(task=spec)))
    assert error.place == "data.task"


def test_a_critic_or_a_reward_model_that_is_no_model(ready: RunConfig, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with_critic = replace(ready, critic=CriticConfig(path=str(empty)))
    assert missing(with_critic) == []
    (error,) = missing(replace(with_critic, advantage=AdvantageConfig(estimator=Estimator.gae)))
    assert error.place == "critic.path"
    (error,) = missing(replace(ready, reward=RewardConfig(model=RewardModelConfig(path=str(empty)))))
    assert error.problem == f"{empty} has no config.json"


def test_sizes_are_the_folders_or_else_the_configs(ready: RunConfig) -> None:
    assert readiness_of(ready).sizes == SIZES
    elsewhere = ModelConfig(path="no/model", sizes=SIZES)
    assert readiness_of(replace(ready, model=elsewhere)).sizes == SIZES
    assert readiness_of(replace(ready, model=ModelConfig(path="no/model"))).sizes is None


def test_sizes_that_contradict_the_folder_are_named(ready: RunConfig) -> None:
    other = replace(ready.model, sizes=replace(SIZES, num_layers=4))
    (error,) = missing(replace(ready, model=other))
    assert error.problem.startswith("model.sizes.num_layers=4, and the model in ")
    assert error.remedy.startswith("set model.sizes.num_layers=3")


def test_a_layout_that_does_not_divide_the_folders_model_is_named(ready: RunConfig) -> None:
    (error,) = missing(replace(ready, learner=replace(ready.learner, parallel=ParallelConfig(pp=2))))
    assert error.place == "learner.parallel.pp, learner.parallel.vpp"


def test_gpus_that_this_machine_lacks_are_named(
    ready: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("async_rl.readiness.GPU_DRIVER", tmp_path / "nvidiactl")
    (tmp_path / "nvidia0").touch()
    (error,) = missing(replace(ready, cluster=ClusterConfig(gpus_per_node=2)))
    assert error.problem == "cluster.gpus_per_node=2, and this machine has 1 GPU"
    (tmp_path / "nvidia1").touch()
    assert missing(replace(ready, cluster=ClusterConfig(gpus_per_node=2))) == []
    assert missing(replace(ready, cluster=ClusterConfig(gpus_per_node=8, address="auto"))) == []
