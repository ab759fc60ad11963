"""Sizes as config.json says them, old names and new."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import MixtralConfig

from async_rl.config.model_sizes import ModelSizes
from async_rl.errors import ConfigError, ModelError
from async_rl.sizing.model_json import check_given, read_sizes, sizes_of
from tests.async_rl.sizing.shapes import LLAMA3_70B, QWEN3_8B, QWEN3_30B_A3B, TINY, hugging_face


@pytest.mark.parametrize("sizes", [QWEN3_8B, QWEN3_30B_A3B, LLAMA3_70B, replace(TINY, tie_embeddings=True)])
def test_what_transformers_writes_is_read(sizes: ModelSizes, tmp_path: Path) -> None:
    hugging_face(sizes).save_pretrained(tmp_path)
    assert read_sizes(tmp_path) == sizes


def test_other_names_and_what_may_be_missing() -> None:
    old = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "vocab_size": 100,
    }
    dense = sizes_of(old, "x")
    assert (dense.num_kv_heads, dense.head_dim, dense.num_experts, dense.tie_embeddings) == (4, 16, 0, False)
    experts = sizes_of({**old, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}, "x")
    assert (experts.num_experts, experts.top_k, experts.intermediate_size) == (8, 2, 24)
    mixtral = sizes_of(json.loads(MixtralConfig().to_json_string()), "x")
    assert (mixtral.num_experts, mixtral.top_k, mixtral.intermediate_size) == (8, 2, 14336)


def test_a_config_without_a_size_is_refused() -> None:
    with pytest.raises(ModelError, match="hidden_size=None is no size"):
        sizes_of({}, "x")


def test_given_sizes_agree_with_the_folder() -> None:
    check_given(TINY, TINY, Path("m"))
    check_given(ModelSizes(), TINY, Path("m"))
    with pytest.raises(ConfigError, match=r"model.sizes.vocab_size=7, and the model in m has 200") as caught:
        check_given(replace(TINY, vocab_size=7), TINY, Path("m"))
    assert caught.value.remedy.startswith("set model.sizes.vocab_size=200")
