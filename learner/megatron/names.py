"""The one table of weight names: which Megatron parameter holds which Hugging Face tensors, and how ranks share it.

Owns names, layouts and shards in both directions. Knows nothing of files, devices, processes or modules.

Legend: G key and value heads, q query heads of each, D head size, H hidden size, I intermediate size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import torch

from learner.model_shape import ModelShape


class Layout(Enum):
    """How Hugging Face tensors lie in a Megatron parameter, and in a rank's shard of it."""

    SAME = auto()
    """One tensor, as it is."""
    STACKED = auto()
    """One above the other: gate, then up."""
    GROUPED = auto()
    """By key and value head: its q query heads, its key head, its value head, and so on for each of G."""
    REPEATED = auto()
    """One tensor, which Hugging Face has under several names."""


class Split(Enum):
    """What a rank holds of each of a parameter's Hugging Face tensors.

    The ranks are those that share a matrix: the tensor parallel ones, or for an expert's matrix those inside of it.
    """

    NONE = auto()
    """All of it."""
    ROWS = auto()
    """As many rows as the others; where they do not come out even, rows of 0 behind the last."""
    COLUMNS = auto()
    """As many columns as the others."""


class Tensor(NamedTuple):
    """A Hugging Face tensor."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One Megatron parameter."""

    megatron: str
    """Its name inside of its layer or, outside of the layers, of the model; an expert's with `{}` for its number among
    those of its rank."""
    tensors: tuple[Tensor, ...]
    """What it holds."""
    layout: Layout = Layout.SAME
    split: Split = Split.NONE
    layer: int | None = None
    """Of the whole model, from 0; None: outside of the layers."""
    expert: int | None = None
    """Of all that its layer has, from 0; None: not an expert's."""

    def portion(self, tensor: Tensor, rank: int, num_ranks: int) -> tuple[slice, ...]:
        """Where a rank's part of one of the tensors lies, a slice for each of its dimensions."""
        whole = [slice(0, size) for size in tensor.shape]
        if self.split is not Split.NONE:
            dim = self.split_dim
            size = tensor.shape[dim]
            each = -(-size // num_ranks)
            whole[dim] = slice(min(rank * each, size), min((rank + 1) * each, size))
        return tuple(whole)

    def shard_shape(self, num_ranks: int) -> tuple[int, ...]:
        """Of the parameter on each of so many ranks."""
        tensors = self.tensors[:1] if self.layout is Layout.REPEATED else self.tensors
        shapes = [list(tensor.shape) for tensor in tensors]
        if self.split is not Split.NONE:
            for shape in shapes:
                shape[self.split_dim] = -(-shape[self.split_dim] // num_ranks)
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    @property
    def split_dim(self) -> int:
        """0 for rows, 1 for columns."""
        assert self.split is not Split.NONE
        return 0 if self.split is Split.ROWS else 1


@dataclass(frozen=True, kw_only=True)
class _ExpertNames:
    """Hugging Face's, inside of a layer."""

    block: str
    gate: str
    up: str
    down: str


_EXPERT_NAMES = {
    "MixtralForCausalLM": _ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2"),
    "Qwen3MoeForCausalLM": _ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj"),
}


def weights_of(shape: ModelShape, *, use_te: bool) -> Iterator[Weight]:
    """Every parameter of a language model, in Hugging Face's order; a tied output layer is the embedding."""
    yield from body_weights_of(shape, use_te=use_te)
    if not shape.tie_embeddings:
        yield output_weight_of(shape)


def body_weights_of(shape: ModelShape, *, use_te: bool) -> Iterator[Weight]:
    """What stands below the output layer.

    Transformer Engine's layers hold a norm inside of the projection that follows it.
    """
    embedding = Tensor("model.embed_tokens.weight", (shape.vocab_size, shape.hidden_size))
    yield Weight(megatron="embedding.word_embeddings.weight", tensors=(embedding,), split=Split.ROWS)
    for layer in range(shape.num_layers):
        yield from _attention(shape, layer, use_te)
        yield from _feed_forward(shape, layer, use_te)
    norm = Tensor("model.norm.weight", (shape.hidden_size,))
    yield Weight(megatron="decoder.final_layernorm.weight", tensors=(norm,))


def output_weight_of(shape: ModelShape) -> Weight:
    """The output layer's; tied ones have a parameter of their own where the embedding is another rank's."""
    name = "model.embed_tokens.weight" if shape.tie_embeddings else "lm_head.weight"
    tensor = Tensor(name, (shape.vocab_size, shape.hidden_size))
    return Weight(megatron="output_layer.weight", tensors=(tensor,), split=Split.ROWS)


def adapters_of(shape: ModelShape, rank: int) -> Iterator[Weight]:
    """Every parameter of LoRA adapters of a rank, in PEFT's names."""
    for weight in body_weights_of(shape, use_te=False):
        if weight.megatron in ADAPTED:
            yield from _adapter(weight, rank)


ADAPTED = tuple(
    f"{name}.weight"
    for name in ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")
)
"""Parameters that adapters may stand beside, inside of a layer."""


def _adapter(weight: Weight, rank: int) -> Iterator[Weight]:
    """Megatron holds several projections in one matrix, whose adapter reads all their inputs once."""
    ours = f"adapters.{weight.megatron.split('.')[-2]}"
    down, up = ([_peft_name(tensor.name, part) for tensor in weight.tensors] for part in "AB")
    is_column = weight.split is Split.ROWS
    yield Weight(
        megatron=f"{ours}.down",
        tensors=tuple(Tensor(name, (rank, t.shape[1])) for name, t in zip(down, weight.tensors, strict=True)),
        layout=Layout.SAME if len(down) == 1 else Layout.REPEATED,
        split=Split.NONE if is_column else Split.COLUMNS,
        layer=weight.layer,
    )
    yield Weight(
        megatron=f"{ours}.up",
        tensors=tuple(Tensor(name, (t.shape[0], rank)) for name, t in zip(up, weight.tensors, strict=True)),
        layout=weight.layout,
        split=Split.ROWS if is_column else Split.NONE,
        layer=weight.layer,
    )


def _peft_name(name: str, part: str) -> str:
    return f"base_model.model.{name.removesuffix('.weight')}.lora_{part}.weight"


def _attention(shape: ModelShape, layer: int, use_te: bool) -> Iterator[Weight]:
    theirs, hidden = f"model.layers.{layer}", shape.hidden_size
    norm = "self_attention.linear_qkv.layer_norm_weight" if use_te else "input_layernorm.weight"
    yield Weight(megatron=norm, tensors=(Tensor(f"{theirs}.input_layernorm.weight", (hidden,)),), layer=layer)
    theirs += ".self_attn"
    heads = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
    for kind, width in [("weight", (hidden,)), ("bias", ())][: 2 if shape.qkv_bias else 1]:
        rows = {f"{theirs}.{name}_proj.{kind}": count * shape.head_dim for name, count in heads.items()}
        yield Weight(
            megatron=f"self_attention.linear_qkv.{kind}",
            tensors=tuple(Tensor(name, (count, *width)) for name, count in rows.items()),
            layout=Layout.GROUPED,
            split=Split.ROWS,
            layer=layer,
        )
    for name in "qk" if shape.qk_norm else "":
        tensor = Tensor(f"{theirs}.{name}_norm.weight", (shape.head_dim,))
        yield Weight(megatron=f"self_attention.{name}_layernorm.weight", tensors=(tensor,), layer=layer)
    output = Tensor(f"{theirs}.o_proj.weight", (hidden, shape.num_heads * shape.head_dim))
    yield Weight(megatron="self_attention.linear_proj.weight", tensors=(output,), split=Split.COLUMNS, layer=layer)


def _feed_forward(shape: ModelShape, layer: int, use_te: bool) -> Iterator[Weight]:
    theirs, hidden = f"model.layers.{layer}", shape.hidden_size
    # Before experts stands the router, which no norm can hide in.
    norm = "mlp.linear_fc1.layer_norm_weight" if use_te and shape.moe is None else "pre_mlp_layernorm.weight"
    yield Weight(megatron=norm, tensors=(Tensor(f"{theirs}.post_attention_layernorm.weight", (hidden,)),), layer=layer)
    if shape.moe is None:
        names = [f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
        yield from _swiglu("mlp.linear_fc{n}.weight", names, (shape.intermediate_size, hidden), layer)
        return
    words = _EXPERT_NAMES[shape.architecture]
    theirs += f".{words.block}"
    router = Tensor(f"{theirs}.gate.weight", (shape.moe.num_experts, hidden))
    yield Weight(megatron="mlp.router.weight", tensors=(router,), layer=layer)
    # Transformer Engine computes all experts of a rank in one call.
    ours = "mlp.experts.linear_fc{n}.weight{{}}" if use_te else "mlp.experts.local_experts.{{}}.linear_fc{n}.weight"
    for expert in range(shape.moe.num_experts):
        names = [f"{theirs}.experts.{expert}.{name}.weight" for name in (words.gate, words.up, words.down)]
        yield from _swiglu(ours, names, (shape.moe.intermediate_size, hidden), layer, expert)


def _swiglu(
    ours: str, theirs: Sequence[str], size: tuple[int, int], layer: int, expert: int | None = None
) -> Iterator[Weight]:
    """The two matrices that `ours` names by `{n}`; `theirs` are gate, up and down, `size` is [I, H]."""
    gate, up, down = theirs
    yield Weight(
        megatron=ours.format(n=1),
        tensors=(Tensor(gate, size), Tensor(up, size)),
        layout=Layout.STACKED,
        split=Split.ROWS,
        layer=layer,
        expert=expert,
    )
    yield Weight(
        megatron=ours.format(n=2),
        tensors=(Tensor(down, size[::-1]),),
        split=Split.COLUMNS,
        layer=layer,
        expert=expert,
    )


def merge(weight: Weight, parts: Sequence[torch.Tensor], shape: ModelShape) -> torch.Tensor:
    """A rank's parts of `weight.tensors` to its shard of the Megatron parameter, but for the padding at its end."""
    match weight.layout:
        case Layout.SAME | Layout.REPEATED:
            return parts[0]
        case Layout.STACKED:
            return torch.cat(list(parts))
        case Layout.GROUPED:
            num_groups = parts[1].shape[0] // shape.head_dim
            groups = [part.reshape(num_groups, -1, *part.shape[1:]) for part in parts]
            return torch.cat(groups, dim=1).flatten(0, 1)


def split(weight: Weight, shard: torch.Tensor, shape: ModelShape) -> list[torch.Tensor]:
    """A rank's shard of a Megatron parameter to its parts of `weight.tensors`; views where the layout allows."""
    match weight.layout:
        case Layout.SAME:
            return [shard]
        case Layout.REPEATED:
            return [shard] * len(weight.tensors)
        case Layout.STACKED:
            return list(shard.chunk(len(weight.tensors)))
        case Layout.GROUPED:
            head, queries = shape.head_dim, shape.num_heads // shape.num_kv_heads
            groups = shard.reshape(-1, (queries + 2) * head, *shard.shape[1:])
            return [part.flatten(0, 1) for part in torch.split(groups, [queries * head, head, head], dim=1)]


def join(weight: Weight, shards: torch.Tensor, shape: ModelShape) -> Iterator[tuple[str, torch.Tensor]]:
    """All shards of a Megatron parameter, [how many it is split into, *a shard], to whole named Hugging Face tensors.

    Views where the layout allows.
    """
    if weight.layout is Layout.SAME and weight.split is not Split.COLUMNS:
        parts = [[shards.flatten(0, 1)]]
    else:
        parts = [split(weight, shard, shape) for shard in shards]
    for tensor, pieces in zip(weight.tensors, zip(*parts, strict=True), strict=True):
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=weight.split_dim)
        yield tensor.name, whole[: tensor.shape[0]]
