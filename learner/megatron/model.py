"""A Megatron GPT model in the shape of a Hugging Face one.

Owns the translation of a shape to Megatron's config and layer spec, and the weights' way in and out.
Knows nothing of files, optimizers or losses.

Legend: T tokens of a micro-batch, V vocabulary, H hidden size.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import ModuleSpec, TransformerConfig

from async_rl.errors import ModelError
from learner.megatron import names, runtime
from learner.megatron.attention import SegmentAttention
from learner.megatron.head import Head, ValueHead
from learner.megatron.layout import Layout
from learner.megatron.shard import Shard
from learner.model_shape import ModelShape
from learner.packing import PackedSequences


def build_model(shape: ModelShape, dtype: torch.dtype, head: Head = Head.VOCABULARY) -> GPTModel:
    """A model whose weights are not yet set: `load_weights` is to follow."""
    model = GPTModel(
        config=_transformer_config(shape, dtype),
        transformer_layer_spec=_layer_spec(shape),
        vocab_size=shape.vocab_size,
        max_sequence_length=shape.max_positions,
        share_embeddings_and_output_weights=shape.tie_embeddings and head is Head.VOCABULARY,
        # Our attention rotates by positions that Megatron does not know.
        position_embedding_type="none",
    )
    # Local norms are made in float32 whatever the config says.
    model.to(device=runtime.device(), dtype=dtype)
    if head is Head.VALUE:
        model.output_layer = ValueHead(shape.hidden_size, dtype=dtype, device=runtime.device())
    return model


def forward(model: Callable[..., torch.Tensor], sequences: PackedSequences) -> torch.Tensor:
    """What the head makes of a micro-batch, [1, T, V or 1]; on all but the last pipeline stage hidden states."""
    device = runtime.device()
    return model(
        input_ids=sequences.token_ids.to(device)[None],
        position_ids=sequences.position_ids.to(device)[None],
        attention_mask=None,
        packed_seq_params=Layout.of(sequences, device),
    )


@torch.no_grad()
def load_weights(
    model: GPTModel, shape: ModelShape, tensors: Mapping[str, torch.Tensor], head: Head = Head.VOCABULARY
) -> None:
    """Sets every parameter from Hugging Face tensors, but a `ValueHead`, which stays 0.

    A `ModelError` says that one is missing or of another shape.
    """
    shard = Shard([model], shape)
    weights_of = names.body_weights_of if head is Head.VALUE else names.weights_of
    for weight in weights_of(shape, use_te=runtime.USE_TE):
        for name, wanted in weight.tensors:
            _check_shape(name, tensors.get(name), torch.Size(wanted))
        parameter = shard.find(weight)
        assert parameter is not None
        parameter.copy_(names.merge(weight, [tensors[name] for name, _ in weight.tensors], shape))


def _check_shape(name: str, tensor: torch.Tensor | None, wanted: torch.Size) -> None:
    if tensor is None or tensor.shape != wanted:
        found = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise ModelError(
            f"weight {name} is {found}; config.json asks for shape {tuple(wanted)}",
            place=f"the safetensors files, {name}",
            remedy="give a folder whose weights belong to its config.json",
        )


def _transformer_config(shape: ModelShape, dtype: torch.dtype) -> TransformerConfig:
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_dim,
        ffn_hidden_size=shape.intermediate_size,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps,
        qk_layernorm=shape.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        # Fusions need CUDA.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        # Weights always come from a folder.
        perform_initialization=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        variable_seq_lengths=True,
        # The default refuses variable lengths, even where there are no experts.
        moe_token_dispatcher_type="alltoall",
        # The schedule then leaves losses undivided, and data parallel ranks add up: a loss of ours is
        # already divided by the normaliser of the whole batch.
        calculate_per_token_loss=True,
        finalize_model_grads_func=_finalize_grads,
    )


def _finalize_grads(
    chunks: list[torch.nn.Module],
    num_tokens: torch.Tensor,
    *,
    pg_collection: ProcessGroupCollection,
    force_all_reduce: bool,
) -> None:
    # Without a token count, since it would be divided by.
    finalize_model_grads(chunks, None, pg_collection=pg_collection, force_all_reduce=force_all_reduce)


def _layer_spec(shape: ModelShape) -> ModuleSpec:
    if runtime.USE_TE:
        spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=shape.qk_norm)
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm")
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = partial(
        SegmentAttention,
        frequencies=shape.rope_frequencies,
        device=runtime.device(),
        plain=attention.core_attention if runtime.USE_TE else None,
    )
    return cast(ModuleSpec, spec)
