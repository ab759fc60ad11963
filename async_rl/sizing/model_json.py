"""A model's sizes as its `config.json` says them.

Owns the names that Hugging Face configs have for them, and the comparison with what a config of ours says. Loads
nothing heavy: a dry run answers at once. Whether the architecture can be trained is for the learner to say.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from async_rl.config.model_sizes import ModelSizes
from async_rl.errors import ConfigError, ModelError


def read_fields(folder: Path) -> Mapping[str, object]:
    """The `config.json` of a model's folder; a `ModelError` where it cannot be read."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read: {error}", place="model.path", remedy="name a folder with a config.json"
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no object", place="model.path", remedy="name a folder with a config.json")
    return found


def read_sizes(folder: Path) -> ModelSizes:
    """The sizes of the model in a folder; a `ModelError` where its `config.json` does not say them."""
    return sizes_of(read_fields(folder), str(folder / "config.json"))


def sizes_of(found: Mapping[str, object], place: str) -> ModelSizes:
    """What a `config.json` says.

    Raises:
        ModelError: a size is missing, or no whole number.
    """

    def number(*names: str) -> int:
        value = next((found[name] for name in names if found.get(name) is not None), None)
        if not isinstance(value, int) or value < 1:
            raise ModelError(
                f"{names[0]}={value} is no size of a model", place=place, remedy="give the config.json of a decoder"
            )
        return value

    def has(*names: str) -> bool:
        return any(found.get(name) for name in names)

    hidden_size, num_heads = number("hidden_size"), number("num_attention_heads")
    has_experts = has("num_experts", "num_local_experts")
    return ModelSizes(
        num_layers=number("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=number("num_key_value_heads", "num_attention_heads"),
        head_dim=number("head_dim") if has("head_dim") else hidden_size // num_heads,
        # Mixtral has one name for both kinds of feed-forward layers.
        intermediate_size=number("moe_intermediate_size", "intermediate_size")
        if has_experts
        else number("intermediate_size"),
        vocab_size=number("vocab_size"),
        num_experts=number("num_experts", "num_local_experts") if has_experts else 0,
        top_k=number("num_experts_per_tok") if has_experts else 0,
        tie_embeddings=has("tie_word_embeddings"),
        qk_norm=str(found.get("model_type")).startswith("qwen3"),
    )


def check_given(given: ModelSizes, found: ModelSizes, folder: Path) -> None:
    """Raises a `ConfigError` for the first size that `model.sizes` and the model's folder say differently."""
    for field in fields(ModelSizes) if given.is_given else ():
        ours, theirs = getattr(given, field.name), getattr(found, field.name)
        if ours != theirs:
            raise ConfigError(
                f"model.sizes.{field.name}={ours}, and the model in {folder} has {theirs}",
                place=f"model.sizes.{field.name}, {folder / 'config.json'}",
                remedy=f"set model.sizes.{field.name}={theirs}, or name the folder of the model that was meant",
            )
