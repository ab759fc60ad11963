"""The assistant's turns are found in what any chat template makes of a conversation."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_rl.config.data import LearnTurns
from async_rl.data.chat import Chat
from async_rl.data.learned_text import Rendering, learned_text
from async_rl.data.tokenizer import Tokenizer
from async_rl.errors import DataError
from tests.async_rl.data import chat_templates as templates

TWO_TURNS = ("user:1+1", "assistant:2", "user:2+2", "assistant:4", "user:thanks")


def chat(*messages: str, tools: list[str] | None = None) -> Chat:
    return Chat(
        messages=[dict(zip(("role", "content"), m.split(":"), strict=True)) for m in messages],
        tools=[{"name": name} for name in tools or []],
        place="row 7",
    )


@pytest.fixture
def render_with(tmp_path: Path) -> "RenderWith":
    return RenderWith(tmp_path)


class RenderWith:
    """(template, chat) → its renderings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, template: str, of: Chat, learn: LearnTurns = LearnTurns.all) -> list[Rendering]:
        return learned_text(of, Tokenizer(templates.save_chat_tokenizer(self._folder, template)).render_chat, learn)


def texts(rendering: Rendering) -> list[str]:
    return [rendering.text[span.start : span.end] for span in rendering.learned]


def test_every_turn_of_the_assistant_is_learned_and_what_follows_the_last_is_left_out(render_with: RenderWith) -> None:
    (rendering,) = render_with(templates.CHATML, chat("system:Add.", *TWO_TURNS))
    assert rendering.text == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
    )
    assert texts(rendering) == ["2<|im_end|>\n", "4<|im_end|>\n"]


def test_or_only_the_last(render_with: RenderWith) -> None:
    (rendering,) = render_with(templates.CHATML, chat(*TWO_TURNS), LearnTurns.last)
    assert texts(rendering) == ["4<|im_end|>\n"]


def test_a_turn_that_is_shown_otherwise_later_has_a_rendering_of_its_own(render_with: RenderWith) -> None:
    first, second = render_with(templates.THINKING, chat(*TWO_TURNS))
    assert first.text == "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n<think></think>2<|im_end|>\n"
    assert texts(first) == ["<think></think>2<|im_end|>\n"]
    assert "assistant\n2<|im_end|>" in second.text, "as a generator that goes on is shown the first answer"
    assert texts(second) == ["<think></think>4<|im_end|>\n"]


def test_a_template_without_marks_around_an_answer_will_do(render_with: RenderWith) -> None:
    (rendering,) = render_with(templates.WITHOUT_END, chat(*TWO_TURNS))
    assert texts(rendering) == ["[assistant]2", "[assistant]4"]


def test_tools_are_shown(render_with: RenderWith) -> None:
    (rendering,) = render_with(templates.TOOLS, chat(*TWO_TURNS, tools=["add", "sub"]))
    assert rendering.text.startswith("(add,sub)<|im_start|>user")


def test_without_a_turn_of_the_assistant_there_is_nothing_to_learn(render_with: RenderWith) -> None:
    assert render_with(templates.CHATML, chat("user:hello")) == []


def test_a_prompt_that_its_turn_does_not_begin_with_is_refused_with_both(render_with: RenderWith) -> None:
    with pytest.raises(DataError) as raised:
        render_with(templates.OTHER_PROMPT, chat("user:1+1", "assistant:2"))
    assert raised.value.problem == (
        "row 7: the chat template does not go on from its own prompt: it asks for message 2 with '<think>', and shows "
        "it with '2<|im_end|>\\n'"
    )
    assert "chat_template.jinja" in raised.value.remedy


def test_a_conversation_that_the_assistant_begins_is_refused(render_with: RenderWith) -> None:
    with pytest.raises(DataError, match="row 7: the first message is the assistant's"):
        render_with(templates.CHATML, chat("assistant:hello", "user:hello"))


def test_what_the_template_refuses_is_said_with_its_words(render_with: RenderWith) -> None:
    with pytest.raises(DataError, match="refuses messages of system, user: no system role here"):
        render_with(templates.ALTERNATING, chat("system:Add.", "user:1+1", "assistant:2"))


content = st.text("ab \n", max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(turns=st.lists(st.tuples(content, content), min_size=1, max_size=4))
@pytest.mark.parametrize("template", [templates.CHATML, templates.THINKING])
def test_each_turn_is_learned_once_behind_its_own_prompt(
    tmp_path: Path, template: str, turns: list[tuple[str, str]]
) -> None:
    messages = [
        {"role": role, "content": text}
        for pair in turns
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    if not (tmp_path / "tokenizer.json").exists():
        templates.save_chat_tokenizer(tmp_path, template)
    tokenizer = Tokenizer(tmp_path)
    renderings = learned_text(Chat(messages=list(messages), tools=[], place=""), tokenizer.render_chat, LearnTurns.all)
    learned = [(r.text[: s.start], r.text[s.start : s.end]) for r in renderings for s in r.learned]
    assert len(learned) == len(turns)
    for number, (prompt, text) in enumerate(learned):
        assert prompt == tokenizer.render_chat(messages[: 2 * number + 1], tools=(), for_answer=True)
        assert text.removeprefix("<think></think>") == f"{turns[number][1]}<|im_end|>\n"
