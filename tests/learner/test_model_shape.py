"""What a config says, and which configs are refused."""

import json
from pathlib import Path

import pytest

from async_rl.errors import ModelError
from learner.model_shape import MoeShape, padded_vocab, read_shape
from tests.learner.conftest import MakeReference


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_sizes_are_read(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("Qwen3ForCausalLM", tie_word_embeddings=True)
    shape = read_shape(tmp_path / "model")
    assert (shape.vocab_size, shape.hidden_size, shape.num_layers) == (67, 64, 2)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (4, 2, 32)
    assert (shape.intermediate_size, shape.max_positions) == (96, 128)
    assert shape.tie_embeddings and shape.qk_norm and not shape.qkv_bias


def test_a_dense_model_has_no_experts(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("Qwen3ForCausalLM")
    assert read_shape(tmp_path / "model").moe is None


def test_experts_are_read_by_each_architectures_words(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("Qwen3MoeForCausalLM", norm_topk_prob=False)
    assert read_shape(tmp_path / "model").moe == MoeShape(
        num_experts=8, top_k=3, intermediate_size=32, normalize_top_k=False
    )
    make_reference("MixtralForCausalLM")
    assert read_shape(tmp_path / "model").moe == MoeShape(
        num_experts=4, top_k=2, intermediate_size=96, normalize_top_k=True
    )


@pytest.mark.parametrize(("vocab_size", "tp", "padded"), [(67, 1, 67), (67, 2, 68), (68, 4, 68), (69, 4, 72)])
def test_a_vocabulary_is_padded_to_what_the_ranks_share_evenly(vocab_size: int, tp: int, padded: int) -> None:
    assert padded_vocab(vocab_size, tp) == padded


def test_rope_frequencies_fall_from_one(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("LlamaForCausalLM", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    frequencies = read_shape(tmp_path / "model").rope_frequencies
    assert len(frequencies) == 16
    assert frequencies[0] == 1.0
    assert frequencies[8] == pytest.approx(0.01)


def test_linear_scaling_divides_the_frequencies(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("LlamaForCausalLM", rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})
    assert read_shape(tmp_path / "model").rope_frequencies[0] == 0.25


def test_a_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json") as caught:
        read_shape(tmp_path)
    assert caught.value.place == str(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": "no-such-model"}'])
def test_a_config_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="LlamaForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM"):
        read_shape(tmp_path)


def test_an_unknown_architecture_is_named_with_those_supported(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("LlamaForCausalLM")
    edit_config(tmp_path / "model", architectures=["MistralForCausalLM"])
    with pytest.raises(ModelError, match="MistralForCausalLM") as caught:
        read_shape(tmp_path / "model")
    assert "Qwen3ForCausalLM" in caught.value.remedy
    assert "learner/model_shape.py" in caught.value.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}},
        {"quantization_config": {"quant_method": "fp8"}},
    ],
)
def test_a_variant_that_would_train_wrongly_is_refused(
    make_reference: MakeReference, tmp_path: Path, changes: dict[str, object]
) -> None:
    make_reference("LlamaForCausalLM")
    edit_config(tmp_path / "model", **changes)
    with pytest.raises(ModelError, match="not supported"):
        read_shape(tmp_path / "model")


def test_sliding_windows_are_refused(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=16, max_window_layers=1)
    with pytest.raises(ModelError, match="sliding_attention"):
        read_shape(tmp_path / "model")


@pytest.mark.parametrize(
    ("architecture", "changes", "match"),
    [
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\]"),
        ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 2}, "decoder_sparse_step=2"),
        ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 16}, "sliding_window=16"),
        ("MixtralForCausalLM", {"sliding_window": 16}, "sliding_window=16"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 1}, "num_experts_per_tok=1"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 5}, "num_experts_per_tok=5"),
    ],
)
def test_experts_that_would_train_wrongly_are_refused(
    make_reference: MakeReference, tmp_path: Path, architecture: str, changes: dict[str, object], match: str
) -> None:
    make_reference(architecture)
    edit_config(tmp_path / "model", **changes)
    with pytest.raises(ModelError, match=match):
        read_shape(tmp_path / "model")
