"""What is looked at before anything starts. The mistakes as a user sees them are in tests/integration."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from async_rl.config.data import DataConfig
from async_rl.config.learner import CriticConfig
from async_rl.config.model import Dtype, ModelConfig, NewModel
from async_rl.config.objective import AdvantageConfig, Estimator
from async_rl.config.reward import RewardConfig
from async_rl.config.schema import RunConfig
from async_rl.data.row import Row
from async_rl.data.tasks.addition import Addition
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.errors import ConfigError, ModelError, ResourceError, RewardError
from async_rl.launch import preflight
from learner.model_folder import create_model

SHAPE = NewModel(hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=32, intermediate_size=32)


class Growing:
    """Prompts of 1, 2, 3, … characters."""

    alphabet = "0123456789+="

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        return [Row(prompt="1" * (n + 1), answer="1") for n in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_character_tokenizer(Addition.alphabet, folder / "tokenizer")
    create_model(folder / "model", SHAPE, tokenizer=folder / "tokenizer", seed=0)
    return folder / "model"


@pytest.fixture
def config(model: Path) -> RunConfig:
    return RunConfig(
        model=ModelConfig(path=str(model)),
        data=DataConfig(task=f"{__file__}:Growing", num_train=10, num_evaluate=4, max_prompt_tokens=6),
        reward=RewardConfig(function="async_rl.data.tasks.exact_match:reward"),
    )


def test_what_is_in_order_is_found_and_what_is_left_out_is_said(config: RunConfig) -> None:
    found = preflight.check(config)
    assert [len(p.token_ids) for p in found.prompts] == [1, 2, 3, 4, 5, 6]
    assert len(found.held_out) == 4
    assert found.messages == [
        "4 of 10 prompts are longer than data.max_prompt_tokens=6 (the longest has 10) and are left out."
    ]


def test_sequences_longer_than_the_models_positions_are_refused(config: RunConfig) -> None:
    longer = replace(config, generation=replace(config.generation, max_model_len=SHAPE.max_positions + 1))
    with pytest.raises(ConfigError, match=r"max_model_len=257, but the model has 256 positions"):
        preflight.check(longer)


def test_a_critic_reads_what_the_policy_writes(config: RunConfig, tmp_path: Path) -> None:
    save_character_tokenizer("ab", tmp_path / "tokenizer")
    create_model(tmp_path / "other", SHAPE, tokenizer=tmp_path / "tokenizer", seed=0)
    others = replace(config, critic=CriticConfig(path=str(tmp_path / "other")))
    preflight.check(others)
    valued = replace(others, advantage=AdvantageConfig(estimator=Estimator.gae))
    with pytest.raises(ModelError, match=r"critic's body knows \d+ tokens, and the policy \d+"):
        preflight.check(valued)
    with pytest.raises(ModelError, match=r"no config\.json"):
        preflight.check(replace(valued, critic=CriticConfig(path=str(tmp_path / "nowhere"))))
    preflight.check(replace(valued, critic=CriticConfig(path=config.model.path)))


def test_a_run_needs_no_held_out_prompts(config: RunConfig) -> None:
    found = preflight.check(replace(config, data=replace(config.data, num_evaluate=0)))
    assert found.held_out == [] and len(found.prompts) == 6


def test_what_is_wrong_is_the_users_to_mend(config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        preflight.check(replace(config, model=ModelConfig(path=str(tmp_path / "nowhere"))))
    with pytest.raises(RewardError, match="nowhere"):
        preflight.check(replace(config, reward=RewardConfig(function="nowhere:reward")))


def test_two_versions_of_the_weights_have_to_fit_into_shared_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preflight.check_shared_memory(model, Dtype.float32)
    monkeypatch.setattr(preflight, "weight_bytes", lambda folder, dtype: 1 << 50)
    with pytest.raises(ResourceError, match=f"2 versions of the weights need {2 << 30} MiB"):
        preflight.check_shared_memory(model, Dtype.float32)


def test_weights_count_in_the_format_that_they_are_published_in(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5, dtype=torch.bfloat16)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(2), "c": torch.zeros(())}, tmp_path / "model-2.safetensors")
    assert preflight.weight_bytes(tmp_path, Dtype.bfloat16) == (15 + 2 + 1) * 2
    assert preflight.weight_bytes(tmp_path, Dtype.float32) == (15 + 2 + 1) * 4


def test_a_file_of_weights_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(64)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:200])
    with pytest.raises(ModelError, match="the weights cannot be read"):
        preflight.weight_bytes(tmp_path, Dtype.float32)
