"""Logits against transformers in float32, for every architecture."""

from pathlib import Path

import numpy as np
import pytest
import torch

from async_rl.errors import ModelError
from learner.megatron.model import build_model, forward, load_weights
from learner.megatron.runtime import Ground
from learner.megatron.weights import named_weights
from learner.model_folder import read_weights
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
    load_weights(model, shape, dict(read_weights(tmp_path / "model")))
    rng = np.random.default_rng(0)
    sequences = PackedSequences.pack([rng.integers(0, 67, n) for n in (5, 100, 1, 90, 31)])
    logits = sequences.unpack(forward(model, sequences)[0])
    for tokens, found in zip(sequences.unpack(sequences.token_ids), logits, strict=True):
        assert (found - reference(tokens[None]).logits[0]).abs().max() < 2e-5

    expected = reference.state_dict()
    given = dict(named_weights([model], shape, lambda parameter: parameter))
    assert given.keys() == expected.keys() - ({"lm_head.weight"} if tie else set())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in given.items())


@pytest.mark.parametrize("tie", [True, False])
def test_a_missing_weight_is_named(make_reference: MakeReference, tmp_path: Path, tie: bool) -> None:
    make_reference(tie_word_embeddings=tie)
    shape = read_shape(tmp_path / "model")
    weights = dict(read_weights(tmp_path / "model"))
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load_weights(build_model(shape, torch.float32), shape, weights)


def test_a_weight_of_another_shape_is_named(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    shape = read_shape(tmp_path / "model")
    weights = dict(read_weights(tmp_path / "model")) | {"model.norm.weight": torch.ones(3)}
    with pytest.raises(ModelError, match=r"of shape \(3,\); config\.json asks for shape \(64,\)"):
        load_weights(build_model(shape, torch.float32), shape, weights)
