"""Fine-tuning from rows to a folder that transformers reads, on Megatron."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from async_rl.config.schema import DataConfig, NewModel, OptimizerConfig, SftConfig
from learner.backend import StepResult
from learner.sft_process import run_sft

pytestmark = pytest.mark.integration


class Losses:
    """An observer that keeps the losses."""

    def __init__(self) -> None:
        self.training: list[float] = []
        self.validation: list[float] = []
        self.messages: list[str] = []

    def said(self, message: str) -> None:
        self.messages.append(message)

    def stepped(self, step: int, result: StepResult, num_tokens: int) -> None:
        self.training.append(result.loss)

    def validated(self, step: int, loss: float) -> None:
        self.validation.append(loss)


def test_a_model_from_scratch_learns_a_task_and_is_written_with_its_tokenizer(tmp_path: Path) -> None:
    config = SftConfig(
        output=str(tmp_path / "out"),
        steps=30,
        batch_size=16,
        validate_every=15,
        num_threads=1,
        new_model=NewModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=128),
        data=DataConfig(
            task="async_rl.data.tasks.addition:Addition", num_train=512, num_evaluate=64, max_prompt_tokens=5
        ),
        optimizer=OptimizerConfig(lr=3e-3),
    )
    losses = Losses()
    run_sft(config, run_folder=tmp_path / "run", observer=losses)
    assert len(losses.messages) == 2, "sums of two digits each are too long, in training and held out"
    assert all("prompts are longer than data.max_prompt_tokens=5" in message for message in losses.messages)
    assert len(losses.training) == 30 and len(losses.validation) == 2
    assert losses.validation[-1] < losses.validation[0] < losses.training[0]

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    tokens = tokenizer("1+2=3")["input_ids"]
    assert len(tokens) == 5
    assert torch.isfinite(model(torch.tensor([tokens])).logits).all()
