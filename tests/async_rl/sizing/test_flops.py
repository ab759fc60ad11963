"""Floating-point operations, against those that torch counts in transformers' models."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from async_rl.config.model_sizes import ModelSizes
from async_rl.sizing.flops import ModelFlops, causal_pairs
from tests.async_rl.sizing.shapes import QWEN3_8B, QWEN3_30B_A3B, TINY, hugging_face

EXPERTS = replace(TINY, num_experts=4, top_k=4)


@pytest.mark.parametrize("sizes", [TINY, EXPERTS], ids=["dense", "experts, all of them used"])
@pytest.mark.parametrize("length", [16, 48])
def test_a_step_has_as_many_operations_as_torch_counts(sizes: ModelSizes, length: int) -> None:
    config = hugging_face(sizes)
    # Of fused attention torch counts nothing on a CPU.
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    if sizes.num_experts:
        model.set_experts_implementation("eager")
    ids = torch.randint(0, sizes.vocab_size, (1, length))
    with FlopCounterMode(display=False) as forward:
        loss = model(ids).logits.sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    # Eager attention computes every pair of tokens, and masks half of them.
    ours = {"tokens": length, "scored_tokens": length, "pairs": length**2}
    flops = ModelFlops.of(sizes)
    assert flops.forward(**ours) == pytest.approx(forward.get_total_flops(), rel=0.01)
    total = forward.get_total_flops() + backward.get_total_flops()
    assert flops.training(**ours) == pytest.approx(total, rel=0.01)


def test_a_token_of_a_large_model_takes_two_operations_a_weight() -> None:
    flops = ModelFlops.of(QWEN3_8B)
    per_token = flops.per_token + flops.per_scored_token
    # All weights but the embedding, which is looked up.
    assert per_token == pytest.approx(2 * (8.19e9 - 151936 * 4096), rel=0.001)
    assert ModelFlops.of(QWEN3_30B_A3B).per_token < per_token / 2


def test_pairs_of_a_causal_sequence() -> None:
    assert [causal_pairs(n) for n in (0, 1, 2, 3)] == [0, 1, 3, 6]
    # A shared prompt counts once, and each response attends to it.
    prompt, response = 10, 4
    assert causal_pairs(prompt) + causal_pairs(response, prefix=prompt) == causal_pairs(prompt + response)
