"""Tokenizers: those of model folders, and a character tokenizer for models made from scratch.

The only module that imports transformers' and tokenizers' tokenizers on the driver's side.
"""

from collections.abc import Sequence
from pathlib import Path

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
        if isinstance(prompt, str):
            return prompt
        if self._tokenizer.chat_template is None:
            raise DataError(
                "a prompt is a list of messages, but the tokenizer has no chat template",
                place=f"data.prompt_column, {self._folder}",
                remedy="give prompts as text, or a model whose tokenizer has a chat template",
            )
        text = self._tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        return text

    def encode(self, text: str) -> list[int]:
        """Token ids, without special tokens of its own: a rendered prompt has those it needs."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

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
