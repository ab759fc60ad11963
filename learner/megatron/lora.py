"""LoRA: adapters of low rank beside frozen linear layers (arXiv:2106.09685), spread over ranks as those are.

    y = W x + (alpha / rank) · up (down x)

Owns the adapters, where they hang, and how they merge into weights. Megatron's layers do not know of them: they are
children of each transformer layer, and a hook adds what they say. Knows nothing of losses, files or generators.

Legend: T tokens of a micro-batch, I inputs and O outputs of a linear layer on this rank, R rank of the adapter.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    set_tensor_model_parallel_attributes,
)
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch.nn.functional import linear, rms_norm

from async_rl.config.lora import LoraConfig
from learner.megatron import runtime

_Output = tuple[torch.Tensor, torch.Tensor | None]
_Hook = Callable[[torch.nn.Module, tuple[torch.Tensor, ...], _Output], _Output]

# By whether tokens are spread over ranks outside of the layer.
_WHOLE = {True: gather_from_sequence_parallel_region, False: copy_to_tensor_model_parallel_region}
_SUMMED = {True: reduce_scatter_to_sequence_parallel_region, False: reduce_from_tensor_model_parallel_region}

COLUMN_PARALLEL = frozenset({"linear_qkv", "linear_fc1"})
"""Layers whose outputs are spread over ranks; the inputs of the others are."""


class Adapter(torch.nn.Module):
    """What is added to the output of one linear layer; nothing, before the first step."""

    def __init__(
        self,
        base: ColumnParallelLinear | RowParallelLinear,
        name: str,
        *,
        lora: LoraConfig,
        seed: int,
        sequence_parallel: bool,
    ) -> None:
        """
        Args:
            base: Megatron's layer, column or row parallel; frozen.
            name: its last name.
            lora: rank and scale.
            seed: of this adapter alone, the same on all ranks.
            sequence_parallel: whether tokens are spread over ranks outside of the layer.
        """
        super().__init__()
        num_outputs, num_inputs = base.weight.shape
        self._is_column = name in COLUMN_PARALLEL
        self._sequence_parallel = sequence_parallel
        # Transformer Engine's layer holds the norm before it, whose output the adapter has to see.
        self._norm = (base.layer_norm_weight, base.eps) if runtime.USE_TE and self._is_column else None
        self.scale = lora.scale
        like = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.down = torch.nn.Parameter(_first_down(lora.rank, num_inputs, self._is_column, seed).to(**like))
        self.up = torch.nn.Parameter(torch.zeros(num_outputs, lora.rank, **like))
        split, whole, dim = (self.up, self.down, 0) if self._is_column else (self.down, self.up, 1)
        set_tensor_model_parallel_attributes(split, is_parallel=True, dim=dim, stride=1)
        # Its gradient is of this rank's tokens alone, until Megatron adds those of the others.
        whole.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T, 1, I] → [T, 1, O]."""
        if self._norm is not None:
            weight, eps = self._norm
            tokens = rms_norm(tokens, (tokens.shape[-1],), weight, eps)
        inner = linear(tokens, self.down)
        across_ranks = _WHOLE if self._is_column else _SUMMED
        return linear(across_ranks[self._sequence_parallel](inner), self.up) * self.scale

    def merged(self, weight: torch.Tensor) -> torch.Tensor:
        """This rank's part of W + (alpha / rank) · up · down, [O, I]; rounded once, to the format of W."""
        return (weight.float() + self.scaled_up() @ self.down.float()).to(weight.dtype)

    def scaled_up(self) -> torch.Tensor:
        """[O, R] float32: `up`, with the scale of what the adapter adds."""
        return self.up.float() * self.scale


class LayerAdapters(torch.nn.Module):
    """The adapters of one transformer layer."""

    def __init__(self, adapters: dict[str, Adapter]) -> None:
        super().__init__()
        for name, adapter in adapters.items():
            self.add_module(name, adapter)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[tuple[int, int, int], ...] = (), metadata: object = None
    ) -> ShardedStateDict:
        """Of Megatron's checkpoints, in any layout of ranks."""
        state: ShardedStateDict = {}
        for name, adapter in self.named_children():
            part, axis = ("up", 0) if name in COLUMN_PARALLEL else ("down", 1)
            own = make_sharded_tensors_for_checkpoint(
                adapter.state_dict(keep_vars=True), f"{prefix}{name}.", {part: axis}, sharded_offsets
            )
            if name == "linear_fc1":
                key = f"{prefix}{name}.up"
                own[key] = apply_swiglu_sharded_factory(own[key], sharded_offsets)
            state |= own
        return state


class Lora:
    """All adapters of a rank's pieces of a model."""

    def __init__(self, chunks: Sequence[GPTModel], lora: LoraConfig, *, seed: int) -> None:
        """Freezes the model and hangs adapters beside its projections, before it is wrapped for training."""
        self.rank = lora.rank
        self._is_on = True
        self._of_weight: dict[int, Adapter] = {}
        for chunk in chunks:
            chunk.requires_grad_(False)
            if chunk.pre_process:
                # Checkpointed layers pass gradients on only where their input asks for one.
                chunk.embedding.register_forward_hook(lambda module, args, output: output.requires_grad_(True))
            for layer in chunk.decoder.layers:
                layer.adapters = self._adapters_of(layer, chunk.config.sequence_parallel, lora, seed)

    def merged(self, parameter: torch.Tensor) -> torch.Tensor:
        """A weight with what its adapter adds; one without an adapter as it is."""
        adapter = self._of_weight.get(id(parameter))
        return parameter if adapter is None else adapter.merged(parameter)

    def scaled(self, parameter: torch.Tensor) -> torch.Tensor:
        """An adapter's parameter in float32, with the scale inside, so that merging is a product and a sum."""
        up = {id(adapter.up): adapter for adapter in self._of_weight.values()}.get(id(parameter))
        return parameter.float() if up is None else up.scaled_up()

    @contextmanager
    def taken_off(self) -> Iterator[None]:
        """Inside the block the model is the one that training began with."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def _adapters_of(
        self, layer: TransformerLayer, sequence_parallel: bool, lora: LoraConfig, seed: int
    ) -> LayerAdapters:
        linears = {"linear_qkv": layer.self_attention.linear_qkv, "linear_proj": layer.self_attention.linear_proj}
        if layer.config.num_moe_experts is None:
            linears |= {"linear_fc1": layer.mlp.linear_fc1, "linear_fc2": layer.mlp.linear_fc2}
        adapters: dict[str, Adapter] = {}
        for name, base in linears.items():
            own_seed = zlib.crc32(f"{seed}/{layer.layer_number}/{name}".encode())
            adapter = Adapter(base, name, lora=lora, seed=own_seed, sequence_parallel=sequence_parallel)
            self._of_weight[id(base.weight)] = adapters[name] = adapter
            base.register_forward_hook(self._hook(adapter))
        return LayerAdapters(adapters)

    def _hook(self, adapter: Adapter) -> _Hook:
        def add(module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: _Output) -> _Output:
            return (output[0] + adapter(args[0]), output[1]) if self._is_on else output

        return add


def _first_down(rank: int, num_inputs: int, is_column: bool, seed: int) -> torch.Tensor:
    """This rank's part [R, I] of what no layout of ranks changes: uniform, as PyTorch begins linear layers."""
    size = 1 if is_column else parallel_state.get_tensor_model_parallel_world_size()
    place = 0 if is_column else parallel_state.get_tensor_model_parallel_rank()
    whole = torch.empty(rank, num_inputs * size)
    bound = whole.shape[1] ** -0.5
    whole.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
    return whole[:, place * num_inputs : (place + 1) * num_inputs].contiguous()
