"""A Hugging Face model folder: a trained copy written, a new one made.

Owns the files: safetensors, their index, and what is copied beside them. Knows nothing of any training
library; what the config means is `model_shape`'s, and `weight_files` reads.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion

from async_rl.config.model import NewModel
from async_rl.errors import DataError, ModelError
from learner.weight_files import INDEX, SINGLE

_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_SHARD_BYTES = 4 << 30

# Not Qwen2: transformers takes the tokenizer of each of its folders for Qwen2's own, whatever lies there.
_FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}


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
        **_experts(model),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = model_class(config)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    network.generation_config.save_pretrained(folder)
    words.save_pretrained(folder)
    # Parameters, unlike a state dict, name tied embeddings once; all experts of a layer are one, and two in files.
    tensors = revert_weight_conversion(network, dict(network.named_parameters()))
    _write_weights(folder, tensors.items())


def _experts(model: NewModel) -> dict[str, object]:
    """Of the config; each family has its own words."""
    if model.family == "mixtral":
        return {"num_local_experts": model.num_experts, "num_experts_per_tok": model.top_k}
    if model.family == "qwen3_moe":
        return {
            "num_experts": model.num_experts,
            "num_experts_per_tok": model.top_k,
            "moe_intermediate_size": model.intermediate_size,
            "norm_topk_prob": True,
        }
    return {}


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


def _write_weights(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    for old in (*folder.glob("model*.safetensors"), folder / INDEX):
        old.unlink(missing_ok=True)
    shards: list[list[str]] = []
    total_size = 0
    for shard in _shards(tensors):
        shards.append(list(shard))
        total_size += sum(tensor.nbytes for tensor in shard.values())
        save_file(shard, folder / _shard_name(len(shards), 0), metadata={"format": "pt"})
    if len(shards) == 1:
        (folder / _shard_name(1, 0)).rename(folder / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = _shard_name(number, len(shards))
        (folder / _shard_name(number, 0)).rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


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
