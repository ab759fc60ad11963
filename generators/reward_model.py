"""A reward model: a Hugging Face sequence classifier that says what texts are worth.

Owns the model, its tokenizer, and how texts share a forward pass. Knows nothing of who asks.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from async_rl.config.reward import RewardModelConfig
from async_rl.errors import ModelError, RewardError


class RewardModel:
    """Scores texts; on a GPU if there is one."""

    def __init__(self, config: RewardModelConfig, *, num_threads: int) -> None:
        """Loads the folder; a `ModelError` where it holds no classifier with one label."""
        folder = Path(config.path)
        self._config = config
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self._device.type == "cpu":
            torch.set_num_threads(num_threads)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, dtype=getattr(torch, config.dtype.value), output_loading_info=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise _unusable(folder, (str(error).splitlines() or [type(error).__name__])[0]) from error
        if model.config.num_labels != 1:
            raise _unusable(folder, f"it has {model.config.num_labels} labels, and a reward is one number")
        if loading["missing_keys"]:
            raise _unusable(folder, f"its weights lack {', '.join(sorted(loading['missing_keys']))}")
        self._model = model.eval().requires_grad_(False).to(self._device)
        self._max_positions = int(model.config.max_position_embeddings)
        self._vocab_size = int(model.config.vocab_size)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text as the classifier reads it, with `reward.model.ending` behind it.

        Raises:
            RewardError: it is longer than the classifier's positions, or empty.
        """
        bos = self._tokenizer.bos_token
        has_bos = bos is not None and text.startswith(bos)
        ids: list[int] = self._tokenizer(text + self._config.ending, add_special_tokens=not has_bos)["input_ids"]
        if not 0 < len(ids) <= self._max_positions:
            raise RewardError(
                f"a text of {len(ids)} tokens, and the reward model reads 1 to {self._max_positions}",
                place="reward.model.path, generation.max_model_len",
                remedy="shorten generation.max_model_len, or give a reward model with more positions",
            )
        return ids

    @torch.inference_mode()
    def score(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """The score of each row of token ids, in their order."""
        scores = [0.0] * len(rows)
        for members in plan_passes([len(row) for row in rows], self._config.batch_tokens):
            for index, value in zip(members, self._forward([rows[i] for i in members]), strict=True):
                scores[index] = value
        return scores

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        # The classifier reads the last token that is not padding, and a tokenizer's own padding may end a text: what
        # pads is a token that none of these rows has.
        used = {token_id for row in rows for token_id in row}
        padding = next((i for i in range(self._vocab_size) if i not in used), None)
        if padding is None and len(rows) > 1:
            return [value for row in rows for value in self._forward([row])]
        self._model.config.pad_token_id = padding
        width = max(map(len, rows))
        padded = [[*row, *[padding] * (width - len(row))] for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        logits = self._model(
            input_ids=torch.tensor(padded, device=self._device),
            attention_mask=torch.tensor(mask, device=self._device),
        ).logits
        return [float(value) for value in logits[:, 0].float().cpu()]


def plan_passes(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows that share a pass: of similar length, at most `max_tokens` with their padding, at least one."""
    members: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # The first is the longest, and all are padded to it.
        if members and (len(members) + 1) * lengths[members[0]] > max_tokens:
            yield members
            members = []
        members.append(index)
    if members:
        yield members


def _unusable(folder: Path, why: str) -> ModelError:
    return ModelError(
        f"this is no reward model: {why}",
        place=f"reward.model.path, {folder}",
        remedy="give a Hugging Face folder of a sequence classifier with one label, tokenizer included",
    )
