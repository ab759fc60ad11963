"""A Hugging Face model folder: its weights read, a trained copy written, a new one made.

Owns the files: safetensors, their index, and what is copied beside them. Knows nothing of any training
library; what the config means is `model_shape`'s.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from async_rl.config.schema import NewModel
from async_rl.errors import DataError, ModelError

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_SHARD_BYTES = 4 << 30

_FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def read_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a folder, in its dtype; a `ModelError` for what cannot be read."""
    files = WeightFiles(folder)
    for name in files.names():
        yield name, files.read(name)


class WeightFiles:
    """The safetensors of a folder, read part by part: nothing stands in memory but what was asked for."""

    def __init__(self, folder: Path) -> None:
        """Reads the files' headers; a `ModelError` for what cannot be read."""
        self._files: dict[str, Path] = {}
        self._handles: dict[Path, safe_open] = {}
        for file in _weight_files(folder):
            with _reading(file):
                self._handles[file] = safe_open(file, framework="pt")
                self._files |= dict.fromkeys(self._handles[file].keys(), file)

    def names(self) -> Iterable[str]:
        """Of all tensors, file by file."""
        return self._files.keys()

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor; None where there is none of this name."""
        file = self._files.get(name)
        if file is None:
            return None
        with _reading(file):
            return tuple(self._handles[file].get_slice(name).get_shape())

    def read(self, name: str, part: tuple[slice, ...] | None = None) -> torch.Tensor:
        """A tensor in the file's number format, or the part of it that lies in a slice of each dimension."""
        file = self._files[name]
        with _reading(file):
            if part is None:
                return self._handles[file].get_tensor(name)
            return self._handles[file].get_slice(name)[part]


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"the weights cannot be read: {error}", place=str(file), remedy="copy or download the file again"
        ) from error


def write_model(folder: Path, *, source: Path, tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> None:
    """Writes a copy of the model in `source` with other weights: a folder that any Hugging Face tool loads.

    Args:
        folder: made if missing; files of the same name are replaced.
        source: where config, tokenizer and whatever else lies beside the weights are copied from.
        tensors: every weight, in Hugging Face names; held in memory one shard at a time.
        dtype: number format of the written weights, which the config is made to name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix not in _WEIGHT_SUFFIXES and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_weights(folder, ((name, tensor.to(dtype)) for name, tensor in tensors))


def create_model(folder: Path, model: NewModel, *, tokenizer: Path, seed: int) -> None:
    """Makes a folder with a new model: random weights from `seed`, and the tokenizer of another folder.

    Args:
        folder: made if missing.
        model: the shape.
        tokenizer: folder of a Hugging Face tokenizer; its length becomes the vocabulary, and its special
            tokens go into the config.
        seed: the same seed and shape give the same weights.
    """
    if model.family not in _FAMILIES:
        raise ModelError(
            f"family={model.family!r} is not supported",
            place="new_model.family",
            remedy=f"use one of {', '.join(sorted(_FAMILIES))}",
        )
    config_class, model_class = _FAMILIES[model.family]
    words = _load_tokenizer(tokenizer)
    config = config_class(
        vocab_size=len(words),
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.intermediate_size,
        max_position_embeddings=model.max_positions,
        tie_word_embeddings=model.tie_embeddings,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        dtype="float32",
        architectures=[model_class.__name__],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = model_class(config)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    network.generation_config.save_pretrained(folder)
    words.save_pretrained(folder)
    # Parameters, unlike a state dict, name tied embeddings once.
    _write_weights(folder, network.named_parameters())


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"the tokenizer cannot be read: {first_line}",
            place=str(folder),
            remedy="name a folder with tokenizer.json and tokenizer_config.json",
        ) from error


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        return [folder / shard for shard in _shards_in(index)]
    if not (folder / _WEIGHTS).is_file():
        raise ModelError(
            f"there is neither {_WEIGHTS} nor {_INDEX}",
            place=str(folder),
            remedy="save the model with safetensors (`save_pretrained` does)",
        )
    return [folder / _WEIGHTS]


def _shards_in(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the index of the weights cannot be read: {type(error).__name__}: {error}",
            place=str(index),
            remedy="copy or download the file again",
        ) from error


def _write_weights(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    for old in (*folder.glob("model*.safetensors"), folder / _INDEX):
        old.unlink(missing_ok=True)
    shards: list[list[str]] = []
    total_size = 0
    for shard in _shards(tensors):
        shards.append(list(shard))
        total_size += sum(tensor.nbytes for tensor in shard.values())
        save_file(shard, folder / _shard_name(len(shards), 0), metadata={"format": "pt"})
    if len(shards) == 1:
        (folder / _shard_name(1, 0)).rename(folder / _WEIGHTS)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = _shard_name(number, len(shards))
        (folder / _shard_name(number, 0)).rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors:
        if shard and num_bytes + tensor.nbytes > _SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
        # A copy: safetensors refuses tensors that share storage, as views of one parameter do.
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        num_bytes += tensor.nbytes
    yield shard


def _shard_name(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"
