"""A reward model's scores are those of the classifier alone with each text, whatever shares its pass."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForSequenceClassification

from async_rl.channel.score_sockets import NoScore, ScoreClient, ScoreServer
from async_rl.config.reward import RewardConfig, RewardModelConfig
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.errors import ModelError, RewardError
from async_rl.protocol import Prompt
from generators.reward import RewardRunner
from generators.reward_call import RewardFailed
from generators.reward_model import RewardModel, plan_passes
from generators.reward_model_process import serve_scores
from generators.reward_reader import RewardReader

TEXTS = ["1", "12", "2123", "3", "321321", "1=2"]


def save_classifier(folder: Path, *, num_labels: int = 1) -> Path:
    save_character_tokenizer("0123456789=", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=num_labels,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def make_model(folder: Path, *, batch_tokens: int = 64, ending: str = "") -> RewardModel:
    return RewardModel(RewardModelConfig(path=str(folder), batch_tokens=batch_tokens, ending=ending), num_threads=1)


def scores_alone(folder: Path, texts: list[str]) -> list[float]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        return [float(model(**tokenizer(text, return_tensors="pt")).logits) for text in texts]


@pytest.mark.parametrize("batch_tokens", [1, 12, 1000])
def test_scores_do_not_depend_on_what_shares_a_pass(folder: Path, batch_tokens: int) -> None:
    model = make_model(folder, batch_tokens=batch_tokens)
    assert model.score([model.tokenize(text) for text in TEXTS]) == pytest.approx(scores_alone(folder, TEXTS), abs=1e-5)


def test_a_text_that_ends_with_the_padding_token_is_read_to_its_end(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = make_model(folder)
    padding = tokenizer.pad_token_id
    rows = [[*model.tokenize("12"), padding], model.tokenize("212121")]
    assert model.score(rows) == pytest.approx([model.score([row])[0] for row in rows], abs=1e-5)
    assert model.score([rows[0]])[0] != pytest.approx(model.score([model.tokenize("12")])[0], abs=1e-4)


def test_a_vocabulary_that_a_batch_uses_up_leaves_rows_alone(folder: Path) -> None:
    model = make_model(folder)
    size = len(AutoTokenizer.from_pretrained(folder))
    rows = [list(range(start, min(start + 4 + start // 4, size))) for start in range(0, size, 4)]
    assert model.score(rows) == pytest.approx([model.score([row])[0] for row in rows], abs=1e-5)


def test_the_ending_stands_behind_each_text(folder: Path) -> None:
    model, plain = make_model(folder, ending="=="), make_model(folder)
    assert model.tokenize("12") == plain.tokenize("12==")


def test_a_text_longer_than_the_positions_is_refused_with_both_numbers(folder: Path) -> None:
    with pytest.raises(RewardError, match="a text of 17 tokens, and the reward model reads 1 to 16"):
        make_model(folder).tokenize("1" * 17)


def test_what_is_no_classifier_with_one_label_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="it has 2 labels"):
        make_model(save_classifier(tmp_path / "two", num_labels=2))
    with pytest.raises(ModelError, match=r"reward\.model\.path"):
        make_model(tmp_path / "nothing")


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(1, 60))
@settings(max_examples=50)
def test_each_row_has_one_pass_within_the_budget(lengths: list[int], max_tokens: int) -> None:
    passes = list(plan_passes(lengths, max_tokens))
    assert sorted(i for members in passes for i in members) == list(range(len(lengths)))
    assert all(len(m) == 1 or len(m) * max(lengths[i] for i in m) <= max_tokens for m in passes)


@contextmanager
def serving(folder: Path) -> Iterator[ScoreClient]:
    server = ScoreServer("127.0.0.1", 0, max_message_bytes=1 << 20)
    client = ScoreClient(f"tcp://127.0.0.1:{server.port}")
    tasks = [asyncio.create_task(serve_scores(make_model(folder), server)), asyncio.create_task(client.run())]
    try:
        yield client
    finally:
        for task in tasks:
            task.cancel()
        client.close()
        server.close()


async def test_many_askers_get_their_own_scores_and_a_bad_text_costs_only_its_own(folder: Path) -> None:
    with serving(folder) as client:
        answers = await asyncio.gather(*map(client.score, [*TEXTS, "1" * 99]), return_exceptions=True)
    assert answers[:-1] == pytest.approx(scores_alone(folder, TEXTS), abs=1e-5)
    assert isinstance(answers[-1], NoScore) and "a text of 99 tokens" in str(answers[-1])


def make_runner(client: ScoreClient, function: str, *, timeout_s: float = 30.0) -> RewardRunner:
    config = RewardConfig(
        function=function, timeout_s=timeout_s, model=RewardModelConfig(path="classifier", weight=2.0)
    )
    return RewardRunner(config, RewardReader(), lambda ids: "".join(map(str, ids)), model=client)


def prompt(text: str) -> Prompt:
    return Prompt(prompt_id=0, text=text, token_ids=[0], answer="21")


async def length_and_tokens(
    prompt: str, response: str, answer: str, metadata: dict[str, object], tokens: list[str]
) -> list[float]:
    return [0.5] * len(tokens)


async def test_a_model_alone_rewards_prompt_and_response_together(folder: Path) -> None:
    with serving(folder) as client:
        reward = await make_runner(client, "").score(prompt("3"), [2, 1])
    assert reward.total == pytest.approx(2.0 * scores_alone(folder, ["321"])[0], abs=1e-5)


async def test_a_function_and_a_model_add_up_and_token_rewards_end_with_the_score(folder: Path) -> None:
    with serving(folder) as client:
        reward = await make_runner(client, f"{__file__}:length_and_tokens").score(prompt("3"), [2, 1])
    score = 2.0 * scores_alone(folder, ["321"])[0]
    assert reward.total == pytest.approx(1.0 + score, abs=1e-5)
    assert reward.per_token == pytest.approx([0.5, 0.5 + score], abs=1e-5)


async def test_a_model_that_does_not_answer_is_a_failed_call_and_no_reward(folder: Path) -> None:
    server = ScoreServer("127.0.0.1", 0, max_message_bytes=1 << 20)
    client = ScoreClient(f"tcp://127.0.0.1:{server.port}")
    runner = make_runner(client, "", timeout_s=0.1)
    with pytest.raises(RewardFailed, match=r"longer than 0\.1 s"):
        await runner.score(prompt("3"), [2, 1])
    assert runner.timeouts == 1
    client.close()
    server.close()
