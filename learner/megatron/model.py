"""A Megatron GPT model in the shape of a Hugging Face one: the pieces of it that this rank holds.

Owns the translation of a shape and of a layout of ranks to Megatron's config and layer spec. Knows nothing of files,
optimizers or losses.

Legend: T tokens of a micro-batch, H hidden size.
"""

from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.transformer_block import LayerNormImpl, TransformerBlockSubmodules
from torch import Tensor

from async_rl.config.parallel import ParallelConfig, Recompute
from async_rl.errors import ConfigError
from learner.megatron import runtime
from learner.megatron.activation import swiglu
from learner.megatron.attention import SegmentAttention
from learner.megatron.context import ContextAttention
from learner.megatron.head import Head, ValueHead
from learner.megatron.norm import RmsNorm
from learner.model_shape import ModelShape, MoeShape, padded_vocab

_RECOMPUTE: dict[Recompute, dict[str, object]] = {
    Recompute.none: {},
    Recompute.selective: {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    Recompute.full: {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}

_SPLITS: dict[type[torch.nn.Module], int] = {VocabParallelEmbedding: 0, ColumnParallelLinear: 0, RowParallelLinear: 1}
"""By which dimension a module's weight is spread; Transformer Engine's modules mark theirs themselves."""


class HiddenStates(GPTModel):  # type: ignore[misc]
    """A model that stops behind its last norm: [T, 1, H], or with sequence parallelism this rank's rows of them.

    Its output layer is a weight that a head of ours reads.
    """

    def _postprocess(self, hidden_states: Tensor, **_: object) -> Tensor:
        return hidden_states


def build_chunks(
    shape: ModelShape, dtype: torch.dtype, head: Head, *, parallel: ParallelConfig, recompute: Recompute
) -> list[HiddenStates]:
    """This rank's pieces of a model, first to last: one, or with an interleaved pipeline several.

    Weights are not yet set. A `ConfigError` where the layout of ranks does not divide the model.
    """
    _refuse_misfits(shape, parallel)
    config = _transformer_config(shape, dtype, parallel, recompute)
    stages = range(parallel.vpp) if parallel.vpp > 1 else [None]
    return [_build_chunk(shape, config, head, parallel.tp, vp_stage) for vp_stage in stages]


def _build_chunk(
    shape: ModelShape, config: TransformerConfig, head: Head, tp: int, vp_stage: int | None
) -> HiddenStates:
    is_last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)
    chunk = HiddenStates(
        config=config,
        transformer_layer_spec=_block_spec(shape, config),
        vocab_size=padded_vocab(shape.vocab_size, tp),
        max_sequence_length=shape.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=is_last,
        share_embeddings_and_output_weights=shape.tie_embeddings and head is Head.VOCABULARY,
        # Our attention rotates by positions that Megatron does not know.
        position_embedding_type="none",
        vp_stage=vp_stage,
    )
    _mark_split_weights(chunk)
    # Local norms are made in float32 whatever the config says.
    chunk.to(device=runtime.device(), dtype=config.params_dtype)
    if is_last and head is Head.VALUE:
        chunk.output_layer = ValueHead(shape.hidden_size, dtype=config.params_dtype, device=runtime.device())
    return chunk


def _mark_split_weights(chunk: GPTModel) -> None:
    """Says which weights are parts of a matrix, for the gradient's norm: Megatron says it while it initialises them."""
    for module in chunk.modules():
        split = next((dim for kind, dim in _SPLITS.items() if isinstance(module, kind)), None)
        if split is not None and module.weight is not None:
            set_tensor_model_parallel_attributes(module.weight, True, split, 1)


def _refuse_misfits(shape: ModelShape, parallel: ParallelConfig) -> None:
    num_pieces = parallel.pp * parallel.vpp
    if shape.num_layers % num_pieces:
        raise ConfigError(
            f"pp·vpp = {num_pieces} does not divide the model's {shape.num_layers} layers",
            place="learner.parallel.pp",
            remedy="choose pp and vpp so that every piece of the pipeline has as many layers",
        )
    if shape.num_heads % (parallel.tp * parallel.cp):
        raise ConfigError(
            f"tp·cp = {parallel.tp * parallel.cp} does not divide the model's {shape.num_heads} query heads",
            place="learner.parallel.cp",
            remedy="choose tp and cp so that every rank has as many heads in attention",
        )
    if shape.moe is not None and parallel.tp > 1 and not parallel.sequence_parallel:
        raise ConfigError(
            f"tp={parallel.tp} with experts, and without sequence parallelism",
            place="learner.parallel.sequence_parallel",
            remedy="set learner.parallel.sequence_parallel=true: without it each rank would send every token",
        )


def _transformer_config(
    shape: ModelShape, dtype: torch.dtype, parallel: ParallelConfig, recompute: Recompute
) -> TransformerConfig:
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
        # Of the layer spec: ours.
        use_te_activation_func=not runtime.USE_TE,
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
        **_RECOMPUTE[recompute],
        **_layout(parallel),
        **({} if shape.moe is None else _experts(shape.moe)),
    )


def _layout(parallel: ParallelConfig) -> dict[str, object]:
    is_interleaved = parallel.vpp > 1
    return {
        "tensor_model_parallel_size": parallel.tp,
        "pipeline_model_parallel_size": parallel.pp,
        "virtual_pipeline_model_parallel_size": parallel.vpp if is_interleaved else None,
        "context_parallel_size": parallel.cp,
        "expert_model_parallel_size": parallel.ep,
        "expert_tensor_parallel_size": parallel.etp,
        "sequence_parallel": parallel.sequence_parallel,
        # Interleaved stages exchange by messages of their own: in batches gloo pairs them wrongly, without a word.
        "overlap_p2p_comm": is_interleaved,
        "batch_p2p_comm": not is_interleaved,
    }


def _experts(moe: MoeShape) -> dict[str, object]:
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.intermediate_size,
        "moe_router_score_function": "softmax",
        # A softmax over the chosen is one over all, divided by the sum over the chosen.
        "moe_router_pre_softmax": not moe.normalize_top_k,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_dtype": "fp32",
        "moe_grouped_gemm": runtime.USE_TE,
        "moe_permute_fusion": False,
    }


def _finalize_grads(
    chunks: list[torch.nn.Module],
    num_tokens: Tensor,
    *,
    pg_collection: ProcessGroupCollection,
    force_all_reduce: bool,
) -> None:
    # Without a token count, since it would be divided by.
    finalize_model_grads(chunks, None, pg_collection=pg_collection, force_all_reduce=force_all_reduce)


def _block_spec(shape: ModelShape, config: TransformerConfig) -> TransformerBlockSubmodules:
    layer = _layer_spec(shape, config.context_parallel_size)
    # Of equal pieces: `_refuse_misfits` saw to it.
    num_pieces = config.pipeline_model_parallel_size * (config.virtual_pipeline_model_parallel_size or 1)
    return TransformerBlockSubmodules(
        layer_specs=[layer] * (shape.num_layers // num_pieces), layer_norm=LayerNormImpl if runtime.USE_TE else RmsNorm
    )


def _layer_spec(shape: ModelShape, cp: int) -> ModuleSpec:
    num_experts = None if shape.moe is None else shape.moe.num_experts
    if runtime.USE_TE:
        spec = get_gpt_layer_with_transformer_engine_spec(
            num_experts=num_experts, moe_grouped_gemm=num_experts is not None, qk_layernorm=shape.qk_norm
        )
    else:
        spec = get_gpt_layer_local_spec(num_experts=num_experts, qk_layernorm=shape.qk_norm, normalization="RMSNorm")
        spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = RmsNorm
        mlp = spec.submodules.mlp.submodules
        (mlp if num_experts is None else mlp.experts.submodules).activation_func = swiglu
    attention = spec.submodules.self_attention.submodules
    if not runtime.USE_TE and shape.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    core = partial(
        SegmentAttention,
        frequencies=shape.rope_frequencies,
        device=runtime.device(),
        plain=attention.core_attention if runtime.USE_TE else None,
    )
    attention.core_attention = partial(ContextAttention, inner=core) if cp > 1 else core
    return spec
