"""Model folders that transformers wrote, with random weights: the reference that ours are compared with."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

_CLASSES = {
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "MixtralForCausalLM": (MixtralConfig, MixtralForCausalLM),
    "Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3ForCausalLM": (Qwen3Config, Qwen3ForCausalLM),
    "Qwen3MoeForCausalLM": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}

SIZES: dict[str, object] = {
    "vocab_size": 67,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}

_EXPERTS: dict[str, dict[str, object]] = {
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}

MakeReference = Callable[..., PreTrainedModel]


@pytest.fixture
def make_reference(tmp_path: Path) -> MakeReference:
    """(architecture, *, folder="model", **config) → a transformers model, saved to tmp_path/folder."""

    def make(architecture: str = "Qwen3ForCausalLM", *, folder: str = "model", **options: object) -> PreTrainedModel:
        config_class, model_class = _CLASSES[architecture]
        sizes = {
            name: value for name, value in SIZES.items() if architecture != "Qwen2ForCausalLM" or name != "head_dim"
        }
        torch.manual_seed(0)
        model = model_class(config_class(**{**sizes, **_EXPERTS.get(architecture, {}), **options})).eval()
        with torch.no_grad():
            # Fresh models have norms of 1 and biases of 0, under which mistakes would not show.
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        model.save_pretrained(tmp_path / folder)
        return model

    return make


def read_folder(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a model's folder, by their names."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
