"""The table of names, against hand-laid tensors and against itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.megatron.names import Layout, Weight, merge, split, weights_of
from learner.model_shape import ModelShape


def shape_of(num_kv_heads: int, queries_each: int, head_dim: int, *, tie: bool = False) -> ModelShape:
    return ModelShape(
        architecture="Qwen3ForCausalLM",
        vocab_size=7,
        hidden_size=3,
        num_layers=2,
        num_heads=num_kv_heads * queries_each,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=5,
        max_positions=8,
        norm_eps=1e-6,
        tie_embeddings=tie,
        qk_norm=True,
        qkv_bias=True,
        rope_theta=10000.0,
        rope_frequencies=(1.0,),
    )


QKV = Weight(megatron="qkv", hugging_face=("q", "k", "v"), layout=Layout.GROUPED)


def test_each_key_head_lies_behind_its_query_heads() -> None:
    q, k, v = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([10.0, 11.0]), torch.tensor([20.0, 21.0])
    merged = merge(QKV, [q, k, v], shape_of(2, 2, 1))
    assert merged.tolist() == [0.0, 1.0, 10.0, 20.0, 2.0, 3.0, 11.0, 21.0]


def test_gate_lies_above_up() -> None:
    weight = Weight(megatron="fc1", hugging_face=("gate", "up"), layout=Layout.STACKED)
    merged = merge(weight, [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])], shape_of(1, 1, 1))
    assert merged.flatten().tolist() == [1.0, 2.0, 3.0, 4.0]


@given(groups=st.integers(1, 4), queries=st.integers(1, 4), head=st.integers(1, 4), is_bias=st.booleans())
def test_split_undoes_merge(groups: int, queries: int, head: int, is_bias: bool) -> None:
    tail = () if is_bias else (3,)
    tensors = [torch.randn(n * head, *tail) for n in (groups * queries, groups, groups)]
    shape = shape_of(groups, queries, head)
    parts = dict(split(QKV, merge(QKV, tensors, shape), shape))
    assert all(torch.equal(parts[name], tensor) for name, tensor in zip("qkv", tensors, strict=True))


@pytest.mark.parametrize("tie", [True, False])
def test_every_name_stands_once(tie: bool) -> None:
    weights = list(weights_of(shape_of(1, 1, 1, tie=tie), use_te=False))
    theirs = [name for weight in weights for name in weight.hugging_face]
    assert len(set(theirs)) == len(theirs)
    assert ("lm_head.weight" in theirs) is not tie


def test_transformer_engine_holds_norms_in_the_projections_that_follow() -> None:
    ours = {weight.megatron for weight in weights_of(shape_of(1, 1, 1), use_te=True)}
    assert "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight" in ours
    assert "decoder.layers.1.mlp.linear_fc1.layer_norm_weight" in ours
    assert "decoder.layers.1.input_layernorm.weight" not in ours
