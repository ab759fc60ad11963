"""A character tokenizer is a real Hugging Face tokenizer; a folder's own is used as it is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from async_rl.data.tokenizer import Tokenizer, save_character_tokenizer
from async_rl.errors import DataError, ModelError

ALPHABET = "0123456789+= \n·é"
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_character_tokenizer(ALPHABET, path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@given(text=st.text(ALPHABET))
def test_text_comes_back_character_for_character(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    assert len(token_ids) == len(text)
    assert tokenizer.decode(token_ids) == text


def test_special_tokens_are_apart_from_characters_and_left_out_of_text(tokenizer: Tokenizer) -> None:
    sum_ids = tokenizer.encode("1+1=2")
    assert tokenizer.end_token_id == 1
    assert min(sum_ids) > 2
    assert tokenizer.decode([*sum_ids, tokenizer.end_token_id, 0]) == "1+1=2"


def test_transformers_loads_it_with_its_special_tokens_without_a_hub(folder: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    assert (loaded.pad_token, loaded.eos_token, loaded.unk_token) == ("<pad>", "<end>", "<unk>")
    assert len(loaded) == len(set(ALPHABET)) + 3


def test_the_same_alphabet_in_another_order_is_the_same_tokenizer(folder: Path, tmp_path: Path) -> None:
    save_character_tokenizer(ALPHABET[::-1] * 2, tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()


def test_an_alphabet_without_characters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="alphabet is empty"):
        save_character_tokenizer("", tmp_path)


def test_text_is_read_as_it_is_and_messages_through_the_template(folder: Path, tmp_path: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    loaded.chat_template = TEMPLATE
    loaded.save_pretrained(str(tmp_path))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.render("1+1=") == "1+1="
    assert tokenizer.render([{"role": "user", "content": "1+1"}]) == "[user]1+1>"


def test_messages_without_a_template_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="no chat template"):
        tokenizer.render([{"role": "user", "content": "1+1"}])


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer") as raised:
        Tokenizer(tmp_path / "absent")
    assert str(tmp_path / "absent") in raised.value.problem


def test_a_tokenizer_without_an_end_token_is_refused(folder: Path, tmp_path: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    loaded.eos_token = None
    loaded.save_pretrained(str(tmp_path))
    with pytest.raises(ModelError, match="no end token"):
        _ = Tokenizer(tmp_path).end_token_id
