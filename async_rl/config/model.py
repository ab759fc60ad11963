"""The model: where it lies, its number format, and the shape of one made from scratch.

Owns names, defaults, effects and ranges. Rules that join options stand in the `*_rules` modules.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.option import option, section

# Enum members are named like their values, since Hydra reads enums by name.


class Dtype(StrEnum):
    """Number format of weights and activations."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass(frozen=True)
class NewModel:
    """A model made from scratch: its shape."""

    family: str = option("qwen3", "Architecture: `llama`, `mixtral`, `qwen3` or `qwen3_moe`.")
    hidden_size: int = option(128, "Width.", minimum=32)
    num_layers: int = option(4, "Depth.", minimum=1)
    num_heads: int = option(4, "Query heads; head size is `head_dim`.", minimum=1)
    num_kv_heads: int = option(2, "Key and value heads; divides `num_heads`.", minimum=1)
    head_dim: int = option(32, "Head size; on CPU the engine takes 32, 64, 80, 96, 112, 128.", minimum=32)
    intermediate_size: int = option(
        512,
        "Width of the feed-forward layer, or of each expert; on CPU the engine takes experts in multiples of 32.",
        minimum=32,
    )
    num_experts: int = option(8, "Experts of a layer, of `mixtral` and `qwen3_moe`.", minimum=2)
    top_k: int = option(2, "Experts that each token is sent to; at most `num_experts`.", minimum=2)
    max_positions: int = option(256, "Longest sequence.", minimum=8)
    tie_embeddings: bool = option(True, "Input and output embeddings share their weights.")


@dataclass(frozen=True)
class ModelConfig:
    """The policy."""

    path: str = option("", "Hugging Face folder with config, weights (safetensors) and tokenizer.")
    dtype: Dtype = option(Dtype.float32, "Number format of the learner and of the engines.")
    sizes: ModelSizes = section(
        ModelSizes,
        "The model's sizes, for a dry run where its folder is not at hand; all 0: read from its `config.json`.",
    )
