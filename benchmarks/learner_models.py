"""Models of the learner's benchmark: of one and of ten million parameters, with random weights."""

from pathlib import Path

import torch
from learner_batches import VOCAB_SIZE
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

SIZES: dict[str, dict[str, int]] = {
    "1M": {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 384,
    },
    "10M": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 1024,
    },
}


def make(folder: Path, size: str) -> None:
    """Writes a model of this size."""
    disable_progress_bar()
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=VOCAB_SIZE, max_position_embeddings=1024, tie_word_embeddings=True, **SIZES[size])
    Qwen3ForCausalLM(config).save_pretrained(folder)
