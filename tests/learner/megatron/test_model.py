"""Logits against transformers in float32, for every architecture."""

from pathlib import Path

import numpy as np
import pytest
import torch

from learner.megatron.head import Head
from learner.megatron.model import build_model, forward
from learner.megatron.runtime import Ground
from learner.megatron.weights import load_shard
from learner.model_shape import read_shape
from learner.packing import PackedSequences
from tests.learner.conftest import MakeReference

pytestmark = pytest.mark.integration

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.fixture(autouse=True)
def on_a_ground(ground: Ground) -> None:
    """Every test."""


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("Qwen3ForCausalLM", {}),
        (
            "Qwen3ForCausalLM",
            {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        ),
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE}),
        ("Qwen2ForCausalLM", {}),
    ],
)
@torch.no_grad()
def test_logits_are_those_of_transformers(
    make_reference: MakeReference, tmp_path: Path, architecture: str, options: dict[str, object], tie: bool
) -> None:
    reference = make_reference(architecture, tie_word_embeddings=tie, **options)
    shape = read_shape(tmp_path / "model")
    model = build_model(shape, torch.float32)
    load_shard([model], shape, tmp_path / "model", Head.VOCABULARY)
    rng = np.random.default_rng(0)
    sequences = PackedSequences.pack([rng.integers(0, 67, n) for n in (5, 100, 1, 90, 31)])
    logits = sequences.unpack(forward(model, sequences)[0])
    for tokens, found in zip(sequences.unpack(sequences.token_ids), logits, strict=True):
        assert (found - reference(tokens[None]).logits[0]).abs().max() < 2e-5
