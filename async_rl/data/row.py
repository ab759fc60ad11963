"""One row of a data set, before it is tokenised.

Owns the words. A row's number in its data set is its `prompt_id`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypedDict, runtime_checkable

from async_rl.protocol import Scalar


class ChatMessage(TypedDict):
    """One turn of a chat, as Hugging Face's chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A prompt and what is known of its answer."""

    prompt: str | list[ChatMessage]
    """Text as the model reads it, or messages for the tokenizer's chat template."""
    answer: str
    task: str = ""
    """Names the row's task in the metrics."""
    metadata: dict[str, Scalar] = field(default_factory=dict)
    """Handed to the reward function."""


@runtime_checkable
class Task(Protocol):
    """A source of rows that are made, not read; `data.task` names it.

    class Squares:
        alphabet = "0123456789^2="

        def rows(self, *, is_held_out, count, seed): ...
    """

    @property
    def alphabet(self) -> str:
        """Every character of its prompts and answers: the vocabulary of a model made for it."""
        ...

    def rows(self, *, is_held_out: bool, count: int, seed: int) -> Sequence[Row]:
        """`count` rows, or all there are if that is fewer; the same for the same arguments.

        Which rows are held out does not depend on the seed: a warm start with another seed has not seen them either.
        """
        ...
