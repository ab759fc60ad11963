"""What a Hugging Face config says of a decoder: its sizes, and whether this project can train it.

Owns the list of supported architectures and the reading of `config.json`. Knows nothing of weights, of
files beside the config, or of any training library.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from async_rl.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What sets one of the Llama-like decoders apart: RMSNorm, RoPE, grouped queries and SwiGLU they share."""

    qk_norm: bool
    """RMSNorm over the head size of queries and keys."""
    qkv_bias: bool
    """Biases on the query, key and value projections."""
    has_experts: bool = False
    """A router sends each token to a few of many feed-forward layers."""


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(qk_norm=False, qkv_bias=False),
    "MixtralForCausalLM": Architecture(qk_norm=False, qkv_bias=False, has_experts=True),
    "Qwen2ForCausalLM": Architecture(qk_norm=False, qkv_bias=True),
    "Qwen3ForCausalLM": Architecture(qk_norm=True, qkv_bias=False),
    "Qwen3MoeForCausalLM": Architecture(qk_norm=True, qkv_bias=False, has_experts=True),
}
"""To add one: an entry here, its tensors in `learner.megatron.names`, its row in the parity tests."""

# The others change with the length of the sequence, or scale attention too.
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, kw_only=True)
class MoeShape:
    """The experts of a layer, the same in every layer: SwiGLU each, and none that all tokens share."""

    num_experts: int
    top_k: int
    """Experts that a token is sent to: those with the highest of softmax(router logits)."""
    intermediate_size: int
    """Of each expert."""
    normalize_top_k: bool
    """The weights of a token's experts are divided by their sum; else they are what the softmax over all says."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder's sizes, in the words of `config.model.NewModel`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of the feed-forward layers; not used where there are experts."""
    max_positions: int
    norm_eps: float
    tie_embeddings: bool
    qk_norm: bool
    qkv_bias: bool
    rope_frequencies: tuple[float, ...]
    """`head_dim` / 2 inverse frequencies, float32, scaling applied."""
    moe: MoeShape | None = None
    """None: each layer has one feed-forward layer."""


def padded_vocab(vocab_size: int, tp: int) -> int:
    """Rows of the embedding and of the output layer when `tp` ranks have the same number of them each.

    What lies behind `vocab_size` is 0, is never predicted, and never leaves the learner.
    """
    return -(-vocab_size // tp) * tp


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder; a `ModelError` where it is unreadable or cannot be trained."""
    config = _read_config(folder)
    architecture = _architecture(config, folder)
    _refuse_variants(config, folder)
    num_heads, hidden_size = config.num_attention_heads, config.hidden_size
    return ModelShape(
        architecture=config.architectures[0],
        vocab_size=config.vocab_size,
        hidden_size=hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(config),
        intermediate_size=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        tie_embeddings=config.tie_word_embeddings,
        qk_norm=architecture.qk_norm,
        qkv_bias=architecture.qkv_bias,
        rope_frequencies=tuple(_rope_frequencies(config).tolist()),
        moe=_moe(config, folder) if architecture.has_experts else None,
    )


def _read_config(folder: Path) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        raise ModelError(
            "there is no config.json, so this is not a Hugging Face model",
            place=str(folder),
            remedy="name a folder with config.json, safetensors and tokenizer files",
        )
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"config.json cannot be read: {first_line}",
            place=str(folder / "config.json"),
            remedy=f"give the config of one of {', '.join(ARCHITECTURES)}",
        ) from error


def _architecture(config: PretrainedConfig, folder: Path) -> Architecture:
    names = config.architectures or []
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ModelError(
            f"architectures={names} is not supported",
            place=str(folder / "config.json"),
            remedy=f"use one of {', '.join(ARCHITECTURES)}; to add one, begin at learner/model_shape.py",
        )
    return ARCHITECTURES[names[0]]


def _refuse_variants(config: PretrainedConfig, folder: Path) -> None:
    fields = config.to_dict()
    rope_type = fields["rope_parameters"]["rope_type"]
    layer_types = set(fields.get("layer_types") or ["full_attention"])
    # Configs with a type for each layer say there whether the window is used.
    window = None if "layer_types" in fields else fields.get("sliding_window")
    dense_layers = fields.get("mlp_only_layers") or []
    variants = {
        f"hidden_act={config.hidden_act!r}": config.hidden_act != "silu",
        "attention_bias=true": fields.get("attention_bias", False),
        "mlp_bias=true": fields.get("mlp_bias", False),
        f"layer_types={sorted(layer_types)}": layer_types != {"full_attention"},
        f"sliding_window={window}": window is not None,
        f"rope_type={rope_type!r}": rope_type not in _ROPE_TYPES,
        "a quantised model": fields.get("quantization_config") is not None,
        f"mlp_only_layers={dense_layers}": bool(dense_layers),
        f"decoder_sparse_step={fields.get('decoder_sparse_step')}": fields.get("decoder_sparse_step", 1) != 1,
    }
    for variant, is_there in variants.items():
        if is_there:
            raise ModelError(
                f"{variant} is not supported",
                place=str(folder / "config.json"),
                remedy="use a model with full attention, SwiGLU without biases, experts in all layers or in none, "
                f"and a rope_type of {', '.join(_ROPE_TYPES)}",
            )


def _moe(config: PretrainedConfig, folder: Path) -> MoeShape:
    # Qwen's configs give the experts' size a name of their own; Mixtral's weights always add up to 1.
    fields = config.to_dict()
    moe = MoeShape(
        num_experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        intermediate_size=fields.get("moe_intermediate_size", config.intermediate_size),
        normalize_top_k=fields.get("norm_topk_prob", True),
    )
    # A router that chooses one expert and weights it with 1 has no gradient.
    fewest = 2 if moe.normalize_top_k else 1
    if not fewest <= moe.top_k <= moe.num_experts:
        raise ModelError(
            f"num_experts_per_tok={moe.top_k} of {moe.num_experts} experts is not supported",
            place=str(folder / "config.json"),
            remedy=f"use a model with {fewest} to {moe.num_experts} experts a token",
        )
    return moe


def _head_dim(config: PretrainedConfig) -> int:
    head_dim = config.to_dict().get("head_dim")
    return int(head_dim or config.hidden_size // config.num_attention_heads)


def _rope_frequencies(config: PretrainedConfig) -> torch.Tensor:
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        head_dim, theta = _head_dim(config), float(rope["rope_theta"])
        return 1.0 / torch.pow(theta, torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    frequencies: torch.Tensor
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    assert attention_factor == 1.0, attention_factor
    return frequencies
