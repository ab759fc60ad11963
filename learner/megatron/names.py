"""The one table of weight names: which Megatron parameter holds which Hugging Face tensors, and how.

Owns names and layouts in both directions. Knows nothing of files, devices or modules.

Legend: G key and value heads, q query heads of each, D head size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import torch

from learner.model_shape import ModelShape


class Layout(Enum):
    """How Hugging Face tensors lie in a Megatron parameter."""

    SAME = auto()
    """One tensor, as it is."""
    STACKED = auto()
    """One above the other: gate, then up."""
    GROUPED = auto()
    """By key and value head: its q query heads, its key head, its value head, and so on for each of G."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One Megatron parameter."""

    megatron: str
    hugging_face: tuple[str, ...]
    layout: Layout = Layout.SAME


def weights_of(shape: ModelShape, *, use_te: bool) -> Iterator[Weight]:
    """Every parameter of a language model, in Hugging Face's order."""
    yield from body_weights_of(shape, use_te=use_te)
    if not shape.tie_embeddings:
        yield Weight(megatron="output_layer.weight", hugging_face=("lm_head.weight",))


def body_weights_of(shape: ModelShape, *, use_te: bool) -> Iterator[Weight]:
    """What stands below the output layer.

    Transformer Engine's layers hold a norm inside of the projection that follows it.
    """
    yield Weight(megatron="embedding.word_embeddings.weight", hugging_face=("model.embed_tokens.weight",))
    for layer in range(shape.num_layers):
        yield from _layer(shape, f"decoder.layers.{layer}", f"model.layers.{layer}", use_te)
    yield Weight(megatron="decoder.final_layernorm.weight", hugging_face=("model.norm.weight",))


def _layer(shape: ModelShape, ours: str, theirs: str, use_te: bool) -> Iterator[Weight]:
    input_norm = "self_attention.linear_qkv.layer_norm_weight" if use_te else "input_layernorm.weight"
    mlp_norm = "mlp.linear_fc1.layer_norm_weight" if use_te else "pre_mlp_layernorm.weight"
    attention = f"{theirs}.self_attn"
    yield Weight(megatron=f"{ours}.{input_norm}", hugging_face=(f"{theirs}.input_layernorm.weight",))
    for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
        yield Weight(
            megatron=f"{ours}.self_attention.linear_qkv.{kind}",
            hugging_face=tuple(f"{attention}.{name}_proj.{kind}" for name in "qkv"),
            layout=Layout.GROUPED,
        )
    if shape.qk_norm:
        for name in "qk":
            yield Weight(
                megatron=f"{ours}.self_attention.{name}_layernorm.weight",
                hugging_face=(f"{attention}.{name}_norm.weight",),
            )
    yield Weight(megatron=f"{ours}.self_attention.linear_proj.weight", hugging_face=(f"{attention}.o_proj.weight",))
    yield Weight(megatron=f"{ours}.{mlp_norm}", hugging_face=(f"{theirs}.post_attention_layernorm.weight",))
    yield Weight(
        megatron=f"{ours}.mlp.linear_fc1.weight",
        hugging_face=(f"{theirs}.mlp.gate_proj.weight", f"{theirs}.mlp.up_proj.weight"),
        layout=Layout.STACKED,
    )
    yield Weight(megatron=f"{ours}.mlp.linear_fc2.weight", hugging_face=(f"{theirs}.mlp.down_proj.weight",))


def merge(weight: Weight, tensors: Sequence[torch.Tensor], shape: ModelShape) -> torch.Tensor:
    """Hugging Face tensors, in the order of `weight.hugging_face`, to Megatron's."""
    match weight.layout:
        case Layout.SAME:
            (tensor,) = tensors
            return tensor
        case Layout.STACKED:
            return torch.cat(list(tensors))
        case Layout.GROUPED:
            groups = [tensor.reshape(shape.num_kv_heads, -1, *tensor.shape[1:]) for tensor in tensors]
            return torch.cat(groups, dim=1).flatten(0, 1)


def split(weight: Weight, tensor: torch.Tensor, shape: ModelShape) -> Iterator[tuple[str, torch.Tensor]]:
    """A Megatron tensor to named Hugging Face ones; views of it where the layout allows."""
    parts: Sequence[torch.Tensor]
    match weight.layout:
        case Layout.SAME:
            parts = [tensor]
        case Layout.STACKED:
            parts = tensor.chunk(len(weight.hugging_face))
        case Layout.GROUPED:
            head, num_groups = shape.head_dim, shape.num_kv_heads
            sizes = [shape.num_heads // num_groups * head, head, head]
            groups = tensor.reshape(num_groups, -1, *tensor.shape[1:])
            parts = [part.flatten(0, 1) for part in torch.split(groups, sizes, dim=1)]
    yield from zip(weight.hugging_face, parts, strict=True)
