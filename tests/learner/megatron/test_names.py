"""The table of names, against hand-laid tensors and against itself."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.megatron.names import Layout, Split, Tensor, Weight, join, merge, weights_of
from learner.model_shape import ModelShape, MoeShape


def shape_of(num_kv_heads: int, queries_each: int, head_dim: int, *, tie: bool = False) -> ModelShape:
    return ModelShape(
        architecture="Qwen3ForCausalLM",
        vocab_size=7,
        hidden_size=3,
        num_layers=2,
        num_heads=num_kv_heads * queries_each,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=8,
        max_positions=8,
        norm_eps=1e-6,
        tie_embeddings=tie,
        qk_norm=True,
        qkv_bias=True,
        rope_frequencies=(1.0,),
    )


def with_experts(architecture: str) -> ModelShape:
    moe = MoeShape(num_experts=3, top_k=2, intermediate_size=4, normalize_top_k=True)
    return replace(shape_of(4, 2, 1), architecture=architecture, moe=moe)


def grouped(*rows: int) -> Weight:
    tensors = tuple(Tensor(name, (count,)) for name, count in zip("qkv", rows, strict=True))
    return Weight(megatron="qkv", tensors=tensors, layout=Layout.GROUPED, split=Split.ROWS)


def test_each_key_head_lies_behind_its_query_heads() -> None:
    q, k, v = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([10.0, 11.0]), torch.tensor([20.0, 21.0])
    merged = merge(grouped(4, 2, 2), [q, k, v], shape_of(2, 2, 1))
    assert merged.tolist() == [0.0, 1.0, 10.0, 20.0, 2.0, 3.0, 11.0, 21.0]


def test_gate_lies_above_up_in_each_shard() -> None:
    gate, up = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    tensors = (Tensor("gate", (2, 1)), Tensor("up", (2, 1)))
    weight = Weight(megatron="fc1", tensors=tensors, layout=Layout.STACKED, split=Split.ROWS)
    shape = shape_of(1, 1, 1)
    assert merge(weight, [gate, up], shape).flatten().tolist() == [1.0, 2.0, 3.0, 4.0]
    second = [values[weight.portion(t, 1, 2)] for t, values in zip(tensors, (gate, up), strict=True)]
    assert merge(weight, second, shape).flatten().tolist() == [2.0, 4.0]


@pytest.mark.parametrize(("rank", "rows"), [(0, slice(0, 2)), (1, slice(2, 4)), (2, slice(4, 5)), (3, slice(5, 5))])
def test_the_last_ranks_have_less_of_a_vocabulary_that_does_not_come_out_even(rank: int, rows: slice) -> None:
    tensor = Tensor("words", (5, 3))
    weight = Weight(megatron="words", tensors=(tensor,), split=Split.ROWS)
    assert weight.portion(tensor, rank, 4) == (rows, slice(0, 3))
    assert weight.shard_shape(4) == (2, 3)


@given(
    groups=st.integers(1, 3),
    queries=st.integers(1, 3),
    head=st.integers(1, 3),
    num_ranks=st.sampled_from([1, 2, 4]),
    architecture=st.sampled_from(["Qwen3ForCausalLM", "MixtralForCausalLM"]),
    use_te=st.booleans(),
)
def test_what_the_ranks_cut_out_makes_up_the_whole(
    groups: int, queries: int, head: int, num_ranks: int, architecture: str, use_te: bool
) -> None:
    shape = shape_of(groups * num_ranks, queries, head)
    if architecture == "MixtralForCausalLM":
        shape = replace(with_experts(architecture), num_kv_heads=groups * num_ranks, head_dim=head,
                        num_heads=groups * num_ranks * queries)  # fmt: skip
    for weight in weights_of(shape, use_te=use_te):
        whole = {tensor.name: torch.randn(tensor.shape) for tensor in weight.tensors}
        shards = []
        for rank in range(num_ranks if weight.split is not Split.NONE else 1):
            parts = [whole[t.name][weight.portion(t, rank, num_ranks)] for t in weight.tensors]
            merged = merge(weight, parts, shape)
            shards.append(torch.full(weight.shard_shape(num_ranks), torch.nan))
            shards[-1][: len(merged)] = merged
        joined = dict(join(weight, torch.stack(shards), shape))
        assert joined.keys() == whole.keys()
        assert all(torch.equal(joined[name], whole[name]) for name in whole)


@pytest.mark.parametrize("tie", [True, False])
def test_every_name_stands_once(tie: bool) -> None:
    weights = list(weights_of(shape_of(1, 1, 1, tie=tie), use_te=False))
    theirs = [tensor.name for weight in weights for tensor in weight.tensors]
    assert len(set(theirs)) == len(theirs)
    assert ("lm_head.weight" in theirs) is not tie


def test_transformer_engine_holds_norms_in_the_projections_that_follow() -> None:
    ours = {weight.megatron for weight in weights_of(shape_of(1, 1, 1), use_te=True)}
    assert "self_attention.linear_qkv.layer_norm_weight" in ours
    assert "mlp.linear_fc1.layer_norm_weight" in ours
    assert "input_layernorm.weight" not in ours


def test_a_norm_before_experts_stands_alone_in_transformer_engine_too() -> None:
    ours = {weight.megatron for weight in weights_of(with_experts("Qwen3MoeForCausalLM"), use_te=True)}
    assert {"pre_mlp_layernorm.weight", "mlp.router.weight", "mlp.experts.linear_fc1.weight{}"} <= ours


@pytest.mark.parametrize(
    ("architecture", "names"),
    [
        (
            "Qwen3MoeForCausalLM",
            ["mlp.experts.2.gate_proj.weight", "mlp.experts.2.up_proj.weight", "mlp.experts.2.down_proj.weight"],
        ),
        (
            "MixtralForCausalLM",
            ["block_sparse_moe.experts.2.w1.weight", "block_sparse_moe.experts.2.w3.weight",
             "block_sparse_moe.experts.2.w2.weight"],
        ),
    ],
)  # fmt: skip
def test_experts_have_the_names_of_their_architecture(architecture: str, names: list[str]) -> None:
    weights = weights_of(with_experts(architecture), use_te=False)
    last = [tensor for weight in weights if (weight.layer, weight.expert) == (1, 2) for tensor in weight.tensors]
    assert [name for name, _ in last] == [f"model.layers.1.{name}" for name in names]
    assert [shape for _, shape in last] == [(4, 3), (4, 3), (3, 4)]
