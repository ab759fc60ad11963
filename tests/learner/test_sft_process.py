"""Fine-tuning import time
from rows to a folder that transformers reads, on Megatron."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from async_rl.config.data import SftDataConfig
from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig, NewModel
from async_rl.config.schema import SftConfig
from async_rl.errors import ConfigError
from async_rl.run_folder import RunFolder
from async_rl.summary import Exit
from learner.agreement import agreed
from learner.megatron.runtime import Ground
from learner.mesh import SingleRank
from learner.model_folder import create_model
from learner.place import Place
from learner.sft_events import Began, Checkpointed, Said, SftEvent, Stepped, Validated
from learner.sft_process import run_sft
from learner.sft_start import SftStart, make_model
from tests.async_rl.data.chat_templates import save_chat_tokenizer

pytestmark = pytest.mark.integration

SHAPE = NewModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=128)
MESSAGES = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "four"},
]


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with Ground(seed=0, num_threads=1) as ground:
        yield ground


def train(config: SftConfig, folder: Path, ground: Ground) -> list[SftEvent]:
    events: list[SftEvent] = []
    folder.mkdir()
    start = SftStart(
        folder=RunFolder(folder),
        model=make_model(config, folder / "new_model"),
        checkpoint=None,
        began_s=time.time(),
        run_hash=None,
    )
    assert run_sft(config, start, ground, Place(), tell=events.append, is_stopping=lambda: False) is Exit.COMPLETED
    return events


def test_a_model_from_scratch_learns_a_task_and_is_written_with_its_tokenizer(tmp_path: Path, ground: Ground) -> None:
    config = SftConfig(
        output=str(tmp_path / "out"),
        steps=30,
        batch_size=16,
        validate_every=15,
        new_model=SHAPE,
        data=SftDataConfig(
            task="async_rl.data.tasks.addition:Addition", num_train=512, num_evaluate=64, max_prompt_tokens=5
        ),
        optimizer=OptimizerConfig(lr=3e-3),
    )
    events = train(config, tmp_path / "run", ground)
    said = [event.message for event in events if isinstance(event, Said)]
    assert len(said) == 2, "sums of two digits each are too long, in training and held out"
    assert all("prompts are longer than data.max_prompt_tokens=5" in message for message in said)
    losses = [event.result.loss for event in events if isinstance(event, Stepped)]
    validation = [event.loss for event in events if isinstance(event, Validated)]
    assert len(losses) == 30 and len(validation) == 2
    assert validation[-1] < validation[0] < losses[0]
    assert [event.step for event in events if isinstance(event, Checkpointed)] == [30]

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    tokens = tokenizer("1+2=3")["input_ids"]
    assert len(tokens) == 5
    assert torch.isfinite(model(torch.tensor([tokens])).logits).all()


@pytest.fixture
def chats(tmp_path: Path) -> SftConfig:
    """One conversation, and a model that reads such."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": MESSAGES}))
    save_chat_tokenizer(tmp_path / "tokenizer")
    create_model(tmp_path / "model", SHAPE, tokenizer=tmp_path / "tokenizer", seed=0)
    return SftConfig(
        output=str(tmp_path / "out"),
        steps=1,
        batch_size=1,
        model=ModelConfig(path=str(tmp_path / "model")),
        data=SftDataConfig(train=str(tmp_path / "rows.jsonl"), evaluate=str(tmp_path / "rows.jsonl")),
        optimizer=OptimizerConfig(lr=1e-9),
    )


def test_the_loss_of_a_conversation_is_that_of_transformers_on_the_assistants_tokens(
    chats: SftConfig, tmp_path: Path, ground: Ground
) -> None:
    events = train(chats, tmp_path / "run", ground)
    assert Began(num_examples=1, num_held_out=1, num_ranks=1) in events
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32, attn_implementation="eager")
    head = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    middle = "\n<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"
    parts = [(head, False), ("2<|im_end|>", True), (middle, False), ("four<|im_end|>", True), ("\n", False)]
    ids: list[int] = []
    labels: list[int] = []
    for text, is_learned in parts:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += tokens
        labels += tokens if is_learned else [-100] * len(tokens)
    with torch.no_grad():
        expected = float(model(torch.tensor([ids]), labels=torch.tensor([labels])).loss)
    (step,) = [event for event in events if isinstance(event, Stepped)]
    (validated,) = [event for event in events if isinstance(event, Validated)]
    assert step.result.loss == pytest.approx(expected, abs=5e-6)
    assert validated.loss == pytest.approx(expected, abs=5e-6)
    assert (step.num_tokens, step.num_learned) == (len(ids), 7)


def test_rows_may_not_be_longer_than_the_model_reads(chats: SftConfig, tmp_path: Path, ground: Ground) -> None:
    with pytest.raises(ConfigError, match=r"data\.max_tokens=9999, and the model reads 256 tokens at most"):
        train(replace(chats, data=replace(chats.data, max_tokens=9999)), tmp_path / "run", ground)


def test_a_mistake_of_one_rank_is_raised_and_work_without_one_is_done() -> None:
    mistake = ConfigError("no", place="here", remedy="yes")

    def fail() -> int:
        raise mistake

    assert agreed(SingleRank(), 0, lambda: 7) == 7
    with pytest.raises(ConfigError) as caught:
        agreed(SingleRank(), 0, fail)
    assert caught.value is mistake
