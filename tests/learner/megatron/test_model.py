"""Logits against transformers in float32, for every architecture."""

from pathlib import Path

import numpy as np
import pytest
import torch

from async_rl.config.parallel import Recompute
from learner.megatron import runtime
from learner.megatron.head import Head
from learner.megatron.micro_batch import MicroBatch
from learner.megatron.model import build_chunks
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
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
        ("LlamaForCausalLM", {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE}),
        ("Qwen2ForCausalLM", {}),
        ("Qwen3MoeForCausalLM", {}),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": False, "num_experts_per_tok": 1}),
        ("MixtralForCausalLM", {}),
    ],
)
@torch.no_grad()
def test_logits_are_those_of_transformers(
    ground: Ground,
    make_reference: MakeReference,
    tmp_path: Path,
    architecture: str,
    options: dict[str, object],
    tie: bool,
) -> None:
    reference = make_reference(architecture, tie_word_embeddings=tie, **options)
    shape = read_shape(tmp_path / "model")
    (model,) = build_chunks(shape, torch.float32, Head.VOCABULARY, parallel=ground.parallel, recompute=Recompute.none)
    load_shard([model], shape, tmp_path / "model", Head.VOCABULARY)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 67, n) for n in (5, 100, 1, 90, 31)]
    packed = MicroBatch.of(PackedSequences.pack(texts), 0, multiple=1, device=runtime.device())
    output = model.embedding.word_embeddings if tie else model.output_layer
    logits = packed.hidden(model)[:, 0] @ output.weight.T
    for tokens, found in zip(texts, logits.split([len(text) for text in texts]), strict=True):
        expected = reference(torch.from_numpy(tokens)[None]).logits[0]
        assert (found - expected).abs().max() < 2e-5
