"""Rows become prompts; what is too long is left out and counted."""

import pytest

from async_rl.data.prompt_set import PromptSet
from async_rl.data.row import Row
from async_rl.data.tokenizer import Tokenizer, save_character_tokenizer
from async_rl.errors import DataError
from async_rl.protocol import Prompt


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_character_tokenizer("abc", folder)
    return Tokenizer(folder)


def rows(*prompts: str) -> list[Row]:
    return [Row(prompt=prompt, answer=prompt[::-1], task="t", metadata={"length": len(prompt)}) for prompt in prompts]


def test_a_prompt_keeps_its_rows_number_answer_task_and_metadata(tokenizer: Tokenizer) -> None:
    built = PromptSet.build(rows("abc", "b", "ca"), tokenizer, max_tokens=2)
    assert built.prompts == [
        Prompt(prompt_id=1, text="b", token_ids=[4], answer="b", task="t", metadata={"length": 1}),
        Prompt(prompt_id=2, text="ca", token_ids=[5, 3], answer="ac", task="t", metadata={"length": 2}),
    ]


def test_what_is_left_out_is_counted_in_a_message(tokenizer: Tokenizer) -> None:
    built = PromptSet.build(rows("abc", "b", "abcabc"), tokenizer, max_tokens=2)
    assert built.messages == [
        "2 of 3 prompts are longer than data.max_prompt_tokens=2 (the longest has 6) and are left out."
    ]


def test_there_is_no_message_when_all_fit(tokenizer: Tokenizer) -> None:
    assert PromptSet.build(rows("ab"), tokenizer, max_tokens=2).messages == []


def test_prompts_that_the_tokenizer_cannot_write_are_counted_and_the_first_is_named(tokenizer: Tokenizer) -> None:
    built = PromptSet.build(rows("ab", "aß", "cab", "?b"), tokenizer, max_tokens=2)
    assert len(built.prompts) == 3, "they are kept"
    assert [prompt.text for prompt in built.unreadable] == ["aß", "?b"]
    assert built.messages[1] == (
        "2 of 3 prompts have text that the tokenizer does not know, and the model reads an unknown token instead; "
        "the first is prompt 1: 'aß'"
    )


def test_a_set_without_a_short_prompt_is_refused_with_the_shortest(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="all 2 prompts are longer than 2 tokens; the shortest has 3"):
        PromptSet.build(rows("abcab", "abc"), tokenizer, max_tokens=2)


def test_an_empty_prompt_is_refused_by_number(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="prompt 1 is empty"):
        PromptSet.build(rows("a", ""), tokenizer, max_tokens=2)


def test_no_rows_are_no_prompts(tokenizer: Tokenizer) -> None:
    assert PromptSet.build([], tokenizer, max_tokens=2).prompts == []
