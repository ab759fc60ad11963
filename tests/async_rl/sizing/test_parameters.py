"""Counts of weights, against transformers' own models, which stand on no memory here."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig
from async_rl.sizing.parameters import active_parameters, model_parameters, stage_parameters
from tests.async_rl.sizing.shapes import LLAMA3_70B, QWEN3_8B, QWEN3_30B_A3B, TINY, hugging_face

TIED = replace(TINY, tie_embeddings=True)


@pytest.mark.parametrize("sizes", [QWEN3_8B, QWEN3_30B_A3B, LLAMA3_70B, TIED], ids=["8b", "30b-a3b", "70b", "tied"])
def test_a_model_has_as_many_weights_as_in_transformers(sizes: ModelSizes) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hugging_face(sizes))
    assert model_parameters(sizes) == sum(p.numel() for p in model.parameters())


def test_a_token_goes_through_a_tenth_of_the_experts_model() -> None:
    assert active_parameters(QWEN3_30B_A3B) == pytest.approx(3.35e9, rel=0.01)
    assert active_parameters(QWEN3_8B) == model_parameters(QWEN3_8B)


@pytest.mark.parametrize("sizes", [QWEN3_8B, QWEN3_30B_A3B, LLAMA3_70B], ids=["8b", "30b-a3b", "70b"])
def test_the_ranks_of_a_layout_hold_the_model_once_and_norms_and_routers_each(sizes: ModelSizes) -> None:
    parallel = ParallelConfig(tp=4, pp=2, ep=4 if sizes.num_experts else 1)
    stages = [stage_parameters(sizes, parallel, stage, has_vocabulary=True) for stage in range(2)]
    held = sum(4 * stage.dense + 4 * stage.experts for stage in stages)
    heads = 2 * sizes.head_dim if sizes.qk_norm else 0
    copied = sizes.num_layers * (heads + (2 + sizes.num_experts) * sizes.hidden_size) + sizes.hidden_size
    assert held == model_parameters(sizes) + 3 * copied


def test_tied_ends_are_one_matrix_on_one_stage_and_two_on_two() -> None:
    ends = TIED.vocab_size * TIED.hidden_size
    (whole,) = [stage_parameters(TIED, ParallelConfig(), 0, has_vocabulary=True).total]
    first, last = (stage_parameters(TIED, ParallelConfig(pp=2), stage, has_vocabulary=True).total for stage in (0, 1))
    assert first + last == whole + ends


def test_a_critic_has_one_output() -> None:
    policy = stage_parameters(TINY, ParallelConfig(), 0, has_vocabulary=True)
    critic = stage_parameters(TINY, ParallelConfig(), 0, has_vocabulary=False)
    assert policy.total - critic.total == (TINY.vocab_size - 1) * TINY.hidden_size


def test_a_vocabulary_that_ranks_cannot_share_evenly_is_filled_up() -> None:
    odd = replace(TINY, vocab_size=201)
    assert (
        stage_parameters(odd, ParallelConfig(tp=2), 0, has_vocabulary=True).dense
        == stage_parameters(replace(TINY, vocab_size=202), ParallelConfig(tp=2), 0, has_vocabulary=True).dense
    )
