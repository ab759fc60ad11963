"""Whole runs with the roles beside a policy: a reward model, adapters whose reference is the policy without them."""

import os
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForSequenceClassification

from tests.integration.conftest import Launch
from tests.integration.test_run import assert_nothing_is_left, metric
from tests.integration.test_run_objectives import assert_sound
from tests.learner.conftest import read_folder

pytestmark = pytest.mark.integration


@pytest.fixture
def classifier(tiny_model: Path, tmp_path: Path) -> Path:
    """A random one that reads the tiny model's tokens."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = tmp_path / "classifier"
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_reward_model_rewards_and_is_started_again_when_it_dies(launch: Launch, classifier: Path) -> None:
    options = {"reward__model__path": str(classifier), "reward__function": "", "reward__timeout_s": 5.0}
    run = launch(steps=20, **options)
    run.until(lambda: len(run.trained) >= 4)
    os.kill(run.pids("reward-model")[-1], signal.SIGKILL)
    run.wait()
    assert "the reward model died" in run.output and "it is started again (1 of 3 times)" in run.output
    assert_sound(run, 20)
    rewards = metric(run, "reward/mean")
    assert len({round(value, 6) for value in rewards}) == 20, "scores differ from batch to batch"
    assert_nothing_is_left(run)


def test_a_reward_model_that_is_none_ends_the_run_with_its_reason(launch: Launch, tiny_model: Path) -> None:
    run = launch(steps=4, reward__model__path=str(tiny_model), reward__function="").wait()
    assert run.exit_code == 2
    assert "this is no reward model" in run.output and "reward.model.path" in run.output


def test_adapters_alone_travel_and_the_reference_is_the_policy_without_them(launch: Launch, tiny_model: Path) -> None:
    run = launch(
        steps=8,
        learner__lora__rank=4,
        learner__lora__publish="adapter",
        learner__optimizer__lr=1e-2,
        kl__coef=0.01,
        staleness__max=0,
        staleness__depth=0,
    ).wait()
    assert_sound(run, 8)
    # The engine samples with the very weights that the learner has.
    assert max(metric(run, "mu_prox/max_abs")) <= 1e-4
    kl = metric(run, "reference/kl")
    assert abs(kl[0]) < 1e-6 < abs(kl[-1])
    base, trained = read_folder(tiny_model), read_folder(run.folder / "model")
    changed = {name.split(".")[-2] for name in base if not torch.equal(base[name], trained[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
