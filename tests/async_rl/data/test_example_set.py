"""Rows become tokens and masks; what is left out is counted."""

from pathlib import Path

import pytest

from async_rl.config.data import LearnTurns
from async_rl.data.chat import Chat
from async_rl.data.example_set import Example, ExampleSet
from async_rl.data.row import Row
from async_rl.data.tokenizer import Tokenizer, save_character_tokenizer
from async_rl.errors import DataError
from tests.async_rl.data import chat_templates as templates


@pytest.fixture
def characters(tmp_path: Path) -> Tokenizer:
    save_character_tokenizer("0123456789+=", tmp_path)
    return Tokenizer(tmp_path)


@pytest.fixture
def chatml(tmp_path: Path) -> Tokenizer:
    return Tokenizer(templates.save_chat_tokenizer(tmp_path))


def chat(*messages: str) -> Chat:
    return Chat(
        messages=[dict(zip(("role", "content"), m.split(":"), strict=True)) for m in messages], tools=[], place="row 7"
    )


def of_chats(*chats: Chat, tokenizer: Tokenizer, max_tokens: int = 200) -> ExampleSet:
    return ExampleSet.of_chats(chats, tokenizer, learn=LearnTurns.all, max_tokens=max_tokens)


def of_pairs(*rows: Row, tokenizer: Tokenizer, max_tokens: int = 200) -> ExampleSet:
    return ExampleSet.of_pairs(rows, tokenizer, max_prompt_tokens=8, max_tokens=max_tokens)


def split(example: Example, tokenizer: Tokenizer) -> str:
    """Its text with what is learned in braces; a special token is its number."""
    special = tokenizer.closing_token_ids
    words = [f"<{t}>" if t in special else tokenizer.decode([t]) for t in example.token_ids.tolist()]
    return "".join(f"{{{w}}}" if m else w for w, m in zip(words, example.learned, strict=True)).replace("}{", "")


def test_a_pair_is_prompt_answer_and_end(characters: Tokenizer) -> None:
    (example,) = of_pairs(Row(prompt="1+2=", answer="3"), tokenizer=characters).examples
    assert example.token_ids.tolist() == [*characters.encode("1+2=3"), characters.end_token_id]
    assert example.learned.tolist() == [False] * 4 + [True] * 2
    assert (example.num_scored, example.num_learned) == (2, 2)


def test_of_a_conversation_the_assistants_turns_are_learned_with_their_ends_and_no_line_break(
    chatml: Tokenizer,
) -> None:
    start, end = chatml.encode("<|im_start|><|im_end|>")
    (example,) = of_chats(chat("user:1+1", "assistant:2", "user:2+2", "assistant:four"), tokenizer=chatml).examples
    assert split(example, chatml) == (
        f"<{start}>user\n1+1<{end}>\n<{start}>assistant\n{{2<{end}>}}\n"
        f"<{start}>user\n2+2<{end}>\n<{start}>assistant\n{{four<{end}>}}\n"
    )
    assert example.num_learned == 7
    assert example.num_scored == len(example) - len(
        chatml.encode("<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n")
    )


def test_a_turn_without_a_token_at_its_end_is_learned_whole_and_that_is_said(tmp_path: Path) -> None:
    tokenizer = Tokenizer(templates.save_chat_tokenizer(tmp_path, templates.WITHOUT_END))
    built = of_chats(chat("user:1+1", "assistant:2 "), tokenizer=tokenizer)
    assert split(built.examples[0], tokenizer) == "[user]1+1{[assistant]2 }"
    assert built.messages == [
        "The chat template ends turns of the assistant without a special token: the model does not learn where to stop."
    ]


def test_a_conversation_in_parts_is_one_more_row_each_and_that_is_said(tmp_path: Path) -> None:
    tokenizer = Tokenizer(templates.save_chat_tokenizer(tmp_path, templates.THINKING))
    built = of_chats(chat("user:1+1", "assistant:2", "user:2+2", "assistant:4"), tokenizer=tokenizer)
    assert len(built.examples) == 2
    assert "1 of 1 conversations are learned in parts, 2 rows in all" in built.messages[0]


def test_what_is_too_long_or_teaches_nothing_is_left_out_and_counted(chatml: Tokenizer) -> None:
    rows = [chat("user:1+1", "assistant:2"), chat("user:1+1", "assistant:" + "2" * 99), chat("user:1+1")]
    built = of_chats(*rows, tokenizer=chatml, max_tokens=40)
    assert len(built.examples) == 1
    assert built.messages == [
        "1 of 3 conversations have no turn of the assistant.",
        "1 of 2 rows are longer than 40 tokens (the longest has 123) and are left out.",
    ]


def test_pairs_too_are_held_to_the_length(characters: Tokenizer) -> None:
    built = of_pairs(
        Row(prompt="1+2=", answer="3"), Row(prompt="1+2=", answer="3333"), tokenizer=characters, max_tokens=6
    )
    assert len(built.examples) == 1
    assert built.messages == ["1 of 2 rows are longer than 6 tokens (the longest has 9) and are left out."]


def test_answers_that_the_tokenizer_cannot_write_are_counted_and_the_first_is_named(characters: Tokenizer) -> None:
    built = of_pairs(Row(prompt="1+2=", answer="3"), Row(prompt="1+2=", answer="three"), tokenizer=characters)
    assert built.messages == [
        "1 of 2 answers have text to learn that the tokenizer does not know, and the model learns an unknown token "
        "instead; the first is of prompt 1: 'three'"
    ]


def test_text_that_is_only_read_may_be_unknown(chatml: Tokenizer) -> None:
    assert of_chats(chat("user:1·1", "assistant:1"), tokenizer=chatml).messages == []
    assert (
        "1 of 1 conversations have text to learn"
        in of_chats(chat("user:1", "assistant:·"), tokenizer=chatml).messages[0]
    )


@pytest.mark.parametrize("rows", [(chat("user:1+1"),), (chat("user:1+1", "assistant:" + "2" * 200),)])
def test_a_set_of_which_nothing_is_left_is_refused(chatml: Tokenizer, rows: tuple[Chat, ...]) -> None:
    with pytest.raises(DataError, match="of 1 rows none is left"):
        of_chats(*rows, tokenizer=chatml)


def test_no_rows_are_no_examples(chatml: Tokenizer) -> None:
    assert of_chats(tokenizer=chatml).examples == []


def test_messages_without_a_template_say_where_one_goes(characters: Tokenizer) -> None:
    with pytest.raises(DataError, match="the tokenizer has no chat template") as raised:
        of_chats(chat("user:1+1", "assistant:2"), tokenizer=characters)
    assert "chat_template.jinja" in raised.value.remedy
