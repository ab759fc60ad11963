"""Which text of a conversation is learned: the assistant's turns, found in what the chat template makes of it.

    <user>1+1?<end><assistant>2<end><user>2+2?<end><assistant>4<end>
                              ══════                          ══════

A turn is what the template adds to its prompt: the messages before it, rendered as for an answer. So any template will
do, and what is learned is what a generator is asked for. Where a template shows a turn otherwise once others follow it
(Qwen3 without its thinking), the turn has a rendering of its own, up to its end.

Pure. Knows no tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from async_rl.config.data import LearnTurns
from async_rl.data.chat import Chat, Message
from async_rl.errors import DataError


class Span(NamedTuple):
    """Characters of a text."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """A text, and what of it is learned."""

    text: str
    learned: tuple[Span, ...]
    """In order, apart from each other; with what the template puts behind a turn."""


class Render(Protocol):
    """A chat template."""

    def __call__(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, object]], for_answer: bool) -> str:
        """The messages as text; `for_answer` up to where the assistant's next turn begins."""
        ...


def learned_text(chat: Chat, render: Render, learn: LearnTurns) -> list[Rendering]:
    """The renderings of a conversation in which each turn to be learned stands once; none where there is no such turn.

    Messages behind the last of these turns are left out.

    Raises:
        DataError: the template cannot be used for it.
    """
    turns = [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if turns and turns[0] == 0:
        raise DataError(
            f"{chat.place}: the first message is the assistant's",
            place="data.messages_column",
            remedy="let a message of the user or the system come first: an answer needs something to answer",
        )
    if learn is LearnTurns.last:
        turns = turns[-1:]
    renderings: list[Rendering] = []
    for turn in reversed(turns):
        text, span = _rendered_turn(chat, turn, render)
        if renderings and renderings[-1].text.startswith(text):
            later = renderings[-1]
            renderings[-1] = Rendering(text=later.text, learned=(span, *later.learned))
        else:
            renderings.append(Rendering(text=text, learned=(span,)))
    return renderings[::-1]


def _rendered_turn(chat: Chat, turn: int, render: Render) -> tuple[str, Span]:
    """The conversation up to the end of a turn, and where in it the turn stands."""
    prompt = render(chat.messages[:turn], tools=chat.tools, for_answer=True)
    text = render(chat.messages[: turn + 1], tools=chat.tools, for_answer=False)
    if not text.startswith(prompt):
        raise DataError(
            f"{chat.place}: the chat template does not go on from its own prompt: it asks for message {turn + 1} "
            f"with {_end(prompt, text)!r}, and shows it with {_end(text, prompt)!r}",
            place="data.messages_column, the model's chat template",
            remedy="change the template (chat_template.jinja in the model's folder), so that a turn begins with what "
            "add_generation_prompt adds",
        )
    return text, Span(len(prompt), len(text))


def _end(text: str, other: str) -> str:
    """From the line on where it becomes another than `other`, shortened."""
    same = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return text[text.rfind("\n", 0, same) + 1 :][:60]
