"""Rows made into prompts that a model can read.

Owns tokenising and the length limit. Knows neither files nor the order in which prompts are issued.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from async_rl.data.row import Row
from async_rl.data.tokenizer import Tokenizer
from async_rl.errors import DataError
from async_rl.protocol import Prompt


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The prompts of a data set, how many were left out, and how many the model cannot read whole."""

    prompts: list[Prompt]
    unreadable: list[Prompt]
    """Those of them in which the tokenizer's unknown token stands for some text."""
    num_too_long: int
    longest: int
    """Tokens of the longest prompt that was left out; 0 if none was."""
    max_tokens: int

    @classmethod
    def build(cls, rows: Sequence[Row], tokenizer: Tokenizer, *, max_tokens: int) -> "PromptSet":
        """Tokenises; a prompt's id is its row's number, whatever is left out.

        Raises:
            DataError: no prompt is short enough, or a prompt has no token.
        """
        texts = [tokenizer.render(row.prompt) for row in rows]
        ids = [tokenizer.encode(text) for text in texts]
        empty = next((number for number, tokens in enumerate(ids) if not tokens), None)
        if empty is not None:
            raise DataError(f"prompt {empty} is empty", place="data", remedy="leave out rows without a prompt")
        prompts = [
            Prompt(
                prompt_id=number, text=text, token_ids=tokens, answer=row.answer, task=row.task, metadata=row.metadata
            )
            for number, (row, text, tokens) in enumerate(zip(rows, texts, ids, strict=True))
            if len(tokens) <= max_tokens
        ]
        unknown = tokenizer.unknown_token_id
        too_long = [len(tokens) for tokens in ids if len(tokens) > max_tokens]
        if rows and not prompts:
            raise DataError(
                f"all {len(rows)} prompts are longer than {max_tokens} tokens; the shortest has {min(too_long)}",
                place="data.max_prompt_tokens",
                remedy="raise it (and generation.max_model_len), or give shorter prompts",
            )
        return cls(
            prompts=prompts,
            unreadable=[prompt for prompt in prompts if unknown in prompt.token_ids],
            num_too_long=len(too_long),
            longest=max(too_long, default=0),
            max_tokens=max_tokens,
        )

    @property
    def messages(self) -> list[str]:
        """What the user should know of it."""
        messages = []
        if self.num_too_long:
            messages.append(
                f"{self.num_too_long} of {self.num_too_long + len(self.prompts)} prompts are longer than "
                f"data.max_prompt_tokens={self.max_tokens} (the longest has {self.longest}) and are left out."
            )
        if self.unreadable:
            first = self.unreadable[0]
            messages.append(
                f"{len(self.unreadable)} of {len(self.prompts)} prompts have text that the tokenizer does not know, "
                "and the model reads an unknown token instead; "
                f"the first is prompt {first.prompt_id}: {first.text!r:.100}"
            )
        return messages
