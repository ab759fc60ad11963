"""Rows made into examples of supervised fine-tuning: tokens, and which of them are learned.

Owns masks, the limits of length, and what is left out. Knows neither files nor batches.

Legend: L tokens of an example.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from async_rl.config.data import LearnTurns
from async_rl.data.chat import Chat
from async_rl.data.learned_text import Rendering, Span, learned_text
from async_rl.data.prompt_set import PromptSet
from async_rl.data.row import Row
from async_rl.data.tokenizer import Tokenizer
from async_rl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Example:
    """A sequence, and which of its tokens are learned: at least one, never the first."""

    token_ids: npt.NDArray[np.int32]
    """[L]"""
    learned: npt.NDArray[np.bool_]
    """[L]"""

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def num_scored(self) -> int:
        """Tokens from the first learned one on."""
        return len(self) - int(self.learned.argmax())

    @cached_property
    def num_learned(self) -> int:
        """Tokens in the loss."""
        return int(self.learned.sum())


@dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """The examples of a data set, and what the user should know of them."""

    examples: list[Example]
    messages: list[str]

    @classmethod
    def of_pairs(
        cls, rows: Sequence[Row], tokenizer: Tokenizer, *, max_prompt_tokens: int, max_tokens: int
    ) -> "ExampleSet":
        """Prompts with their answers and the end token; the answers are learned.

        Raises:
            DataError: no row is left, or a prompt has no token.
        """
        prompts = PromptSet.build(rows, tokenizer, max_tokens=max_prompt_tokens)
        sieve = _Sieve(tokenizer, max_tokens)
        for prompt in prompts.prompts:
            answer = tokenizer.encode(prompt.answer)
            sieve.add(
                [*prompt.token_ids, *answer, tokenizer.end_token_id],
                [False] * len(prompt.token_ids) + [True] * (len(answer) + 1),
                f"of prompt {prompt.prompt_id}: {prompt.answer!r:.100}",
            )
        return cls(examples=sieve.examples(len(prompts.prompts)), messages=prompts.messages + sieve.messages("answers"))

    @classmethod
    def of_chats(
        cls, chats: Sequence[Chat], tokenizer: Tokenizer, *, learn: LearnTurns, max_tokens: int
    ) -> "ExampleSet":
        """Conversations; the assistant's turns are learned, with the special token that ends each.

        Raises:
            DataError: no row is left, or the chat template cannot be used.
        """
        sieve = _Sieve(tokenizer, max_tokens)
        num_without_turn = num_split = num_open = 0
        for chat in chats:
            renderings = learned_text(chat, tokenizer.render_chat, learn)
            num_without_turn += not renderings
            num_split += len(renderings) > 1
            for rendering in renderings:
                token_ids, learned, is_closed = _masked(rendering, tokenizer)
                num_open += not is_closed
                sieve.add(token_ids, learned, chat.place)
        messages = []
        if num_without_turn:
            messages.append(f"{num_without_turn} of {len(chats)} conversations have no turn of the assistant.")
        if num_split:
            messages.append(
                f"{num_split} of {len(chats)} conversations are learned in parts, {sieve.num_seen} rows in all: the "
                "chat template shows some turns otherwise once others follow them."
            )
        if num_open:
            messages.append(
                "The chat template ends turns of the assistant without a special token: the model does not learn "
                "where to stop."
            )
        return cls(examples=sieve.examples(len(chats)), messages=messages + sieve.messages("conversations"))


def _masked(rendering: Rendering, tokenizer: Tokenizer) -> tuple[list[int], list[bool], bool]:
    """Token ids, which are learned, and whether each turn has a token that ends it.

    A token on the border belongs to where it begins.
    """
    token_ids, starts = tokenizer.encode_with_starts(rendering.text)
    places = np.asarray(starts)
    learned = np.zeros(len(token_ids), dtype=bool)
    is_closed = True
    for span in rendering.learned:
        first, end = np.searchsorted(places, [span.start, span.end])
        close = _close(token_ids[first:end], rendering.text, span, starts[first:end], tokenizer)
        is_closed &= close is not None
        learned[first : end if close is None else first + close + 1] = True
    return token_ids, learned.tolist(), is_closed


def _close(token_ids: Sequence[int], text: str, span: Span, starts: Sequence[int], tokenizer: Tokenizer) -> int | None:
    """Index of the special token that ends a turn: the last one, with nothing but whitespace behind it."""
    for index in reversed(range(len(token_ids))):
        if token_ids[index] in tokenizer.closing_token_ids:
            return index
        if text[starts[index] : span.end].strip():
            return None
    return None


class _Sieve:
    """Takes examples, and counts those that it leaves out."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._unknown = tokenizer.unknown_token_id
        self._max_tokens = max_tokens
        self._examples: list[Example] = []
        self._num_unlearned = self._num_too_long = self._longest = self._num_unknown = 0
        self._first_unknown = ""
        self.num_seen = 0

    def add(self, token_ids: list[int], learned: list[bool], name: str) -> None:
        """One more, and what to call it."""
        self.num_seen += 1
        if not any(learned[1:]):
            self._num_unlearned += 1
            return
        if len(token_ids) > self._max_tokens:
            self._num_too_long += 1
            self._longest = max(self._longest, len(token_ids))
            return
        if self._unknown in [token for token, is_learned in zip(token_ids, learned, strict=True) if is_learned]:
            self._first_unknown = self._first_unknown or name
            self._num_unknown += 1
        mask = np.asarray(learned)
        # Nothing comes before the first token that could say it.
        mask[0] = False
        self._examples.append(Example(token_ids=np.asarray(token_ids, dtype=np.int32), learned=mask))

    def examples(self, num_rows: int) -> list[Example]:
        """All that are left; a `DataError` where rows were given and none is."""
        if num_rows and not self._examples:
            raise DataError(
                f"of {num_rows} rows none is left: {self._num_too_long} of {self.num_seen} are longer than "
                f"{self._max_tokens} tokens, the others have nothing to learn",
                place="data",
                remedy="give rows with a turn of the assistant, raise data.max_tokens or micro_batch_tokens, or take a "
                "model that reads longer texts",
            )
        return self._examples

    def messages(self, noun: str) -> list[str]:
        """What the user should know of what was added."""
        messages = []
        if self._num_too_long:
            messages.append(
                f"{self._num_too_long} of {self.num_seen} rows are longer than {self._max_tokens} tokens (the longest "
                f"has {self._longest}) and are left out."
            )
        if self._num_unlearned:
            messages.append(f"{self._num_unlearned} of {self.num_seen} rows have nothing to learn and are left out.")
        if self._num_unknown:
            messages.append(
                f"{self._num_unknown} of {len(self._examples)} {noun} have text to learn that the tokenizer does not "
                f"know, and the model learns an unknown token instead; the first is {self._first_unknown}"
            )
        return messages
