"""Tokenizers: those of model folders, and a character tokenizer for models made from scratch.

The only module that imports transformers' and tokenizers' tokenizers on the driver's side.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from jinja2.exceptions import TemplateError
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from async_rl.data.row import ChatMessage
from async_rl.errors import DataError, ModelError

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"


class Tokenizer:
    """The tokenizer of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ModelError: the folder has no tokenizer that can be loaded.
        """
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{folder} has no tokenizer: {str(error).splitlines()[0]}",
                place="model.path",
                remedy="give a Hugging Face folder with tokenizer.json; `async-rl sft` writes one",
            ) from error
        self._folder = folder

    @property
    def end_token_id(self) -> int:
        """Ends an answer.

        Raises:
            ModelError: the tokenizer has none.
        """
        token_id = self._tokenizer.eos_token_id
        if token_id is None:
            raise ModelError(
                f"the tokenizer in {self._folder} has no end token",
                place="model.path",
                remedy="set eos_token in its tokenizer_config.json",
            )
        return int(token_id)

    @property
    def unknown_token_id(self) -> int | None:
        """Stands for text that it cannot write otherwise; None where there is no such text."""
        token_id = self._tokenizer.unk_token_id
        return None if token_id is None else int(token_id)

    def render(self, prompt: str | Sequence[ChatMessage]) -> str:
        """A prompt as the model reads it: text as it is, messages through the chat template.

        Raises:
            DataError: there are messages, but no chat template.
        """
        return prompt if isinstance(prompt, str) else self.render_chat(prompt, tools=(), for_answer=True)

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], *, tools: Sequence[Mapping[str, object]], for_answer: bool
    ) -> str:
        """Messages through the chat template, `for_answer` up to where the assistant's next turn begins.

        Raises:
            DataError: there is no chat template, or it refuses these messages.
        """
        if self._tokenizer.chat_template is None:
            raise DataError(
                "there are messages, and the tokenizer has no chat template",
                place=f"data, {self._folder}",
                remedy="put a chat_template.jinja into the model's folder, take a model whose tokenizer has one, or "
                "give prompts as text",
            )
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=for_answer,
            )
        except TemplateError as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise DataError(
                f"the chat template refuses messages of {roles}: {error}",
                place=f"data, {self._folder}",
                remedy="order the messages as the template wants them, or change its chat_template.jinja",
            ) from error
        assert isinstance(text, str)
        return text

    def encode(self, text: str) -> list[int]:
        """Token ids, without special tokens of its own: a rendered prompt has those it needs."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids as `encode`, and the character of the text at which each begins.

        Raises:
            ModelError: the tokenizer does not know where its tokens stand.
        """
        if not self._tokenizer.is_fast:
            raise ModelError(
                "the tokenizer does not say which token is of which text, so turns cannot be told apart",
                place=f"model.path, {self._folder}",
                remedy="give the folder a tokenizer.json (transformers' AutoTokenizer.save_pretrained writes one)",
            )
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(encoded["input_ids"]), [start for start, _ in encoded["offset_mapping"]]

    @cached_property
    def closing_token_ids(self) -> frozenset[int]:
        """Special tokens, one of which may end a turn: all but the unknown one, which is text."""
        added = {number for number, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        return frozenset(added | set(self._tokenizer.all_special_ids)) - {self.unknown_token_id}

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def save_character_tokenizer(alphabet: str, folder: Path) -> None:
    """Writes a tokenizer with a token a character to a folder, made if missing.

    Raises:
        DataError: the alphabet is empty.
    """
    characters = sorted(set(alphabet))
    if not characters:
        raise DataError("the task's alphabet is empty", place="data.task", remedy="list the characters that it uses")
    vocabulary = {token: number for number, token in enumerate([PAD, END, UNKNOWN, *characters])}
    tokenizer = RustTokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
