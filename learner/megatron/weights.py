"""Weights between a Hugging Face folder and the ranks that share a model, one parameter at a time.

Owns what each rank reads, and the way of each parameter to the speaker, which is rank 0. No process ever holds a whole
model that is not its own. What lies where in a parameter is `names`'s.

    in     each rank reads its layers, its experts, and its rows or columns of their matrices
    out    ranks that share the matrix ──► the first of them ──► the first of the stage ──► the speaker
                                       gather                 experts               pipeline
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel

from async_rl.errors import ModelError
from learner.megatron import names, runtime
from learner.megatron.head import Head
from learner.megatron.names import Weight
from learner.megatron.shard import Shard, is_first_copy, is_first_of_stage, num_parts_of, sharers_of
from learner.model_shape import ModelShape
from learner.weight_files import WeightFiles


@torch.no_grad()
def load_shard(chunks: Sequence[GPTModel], shape: ModelShape, folder: Path, head: Head) -> None:
    """Sets every parameter that this rank holds, but a `ValueHead`, which stays 0.

    Each rank reads on its own. A `ModelError`, the same on every rank, says that a weight is missing or of another
    shape; headers tell that, so no rank is left waiting for one that could not read.

    Args:
        chunks: this rank's pieces of the model: one, or with an interleaved pipeline several.
        shape: of the whole model.
        folder: with safetensors.
        head: of the model.
    """
    files = WeightFiles(folder)
    weights = list(names.body_weights_of(shape, use_te=runtime.USE_TE))
    # A critic that starts from a reward model would take that model's row here.
    if head is Head.VOCABULARY:
        weights.append(names.output_weight_of(shape))
    for weight in weights:
        _check(weight, files)
    shard = Shard(chunks, shape)
    num_set = 0
    for weight in weights:
        parameter = shard.find(weight)
        if parameter is not None:
            _read(weight, parameter, files, shape)
            num_set += 1
    num_heads = sum(chunk.post_process for chunk in chunks) if head is Head.VALUE else 0
    assert num_set == len(shard.parameters) - num_heads, (num_set, len(shard.parameters), head)


def _check(weight: Weight, files: WeightFiles) -> None:
    for tensor in weight.tensors:
        found = files.shape(tensor.name)
        if found != tensor.shape:
            is_like = "missing" if found is None else f"of shape {found}"
            raise ModelError(
                f"weight {tensor.name} is {is_like}; config.json asks for shape {tensor.shape}",
                place=f"the safetensors files, {tensor.name}",
                remedy="give a folder whose weights belong to its config.json",
            )


def _read(weight: Weight, parameter: torch.nn.Parameter, files: WeightFiles, shape: ModelShape) -> None:
    rank, num_ranks = sharers_of(weight).rank(), num_parts_of(weight)
    parts = [files.read(tensor.name, weight.portion(tensor, rank, num_ranks)) for tensor in weight.tensors]
    merged = names.merge(weight, parts, shape)
    assert parameter.shape == weight.shard_shape(num_ranks), (weight, parameter.shape)
    parameter[: len(merged)] = merged
    parameter[len(merged) :] = 0


def named_weights(
    chunks: Sequence[GPTModel],
    shape: ModelShape,
    value: Callable[[torch.nn.Parameter], torch.Tensor],
    weights: Iterable[Weight] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """`value` of each parameter (itself, its gradient, …) in Hugging Face names and layout, to the speaker.

    All ranks go through it at once, to its end; to all but the speaker it yields nothing. The tensors lie on the
    model's device, and may be views of the model. A rank holds its own shard and one parameter at a time.

    Args:
        chunks: this rank's pieces of the model.
        shape: of the whole model.
        value: of a parameter: a tensor of its shape, on its device.
        weights: which of them; None: all of the model.
    """
    shard = Shard(chunks, shape)
    like = value(shard.parameters[0])
    for weight in names.weights_of(shape, use_te=runtime.USE_TE) if weights is None else weights:
        shards = _at_speaker(weight, shard, value, like)
        if dist.get_rank() == 0:
            assert shards is not None, weight
            yield from names.join(weight, shards, shape)


def _at_speaker(
    weight: Weight, shard: Shard, value: Callable[[torch.nn.Parameter], torch.Tensor], like: torch.Tensor
) -> torch.Tensor | None:
    """A weight's shards, one above the other, for the speaker; what other ranks get is of no use."""
    if not is_first_copy(weight):
        return None
    parameter = shard.find(weight)
    shards = None if parameter is None else _gather(value(parameter).detach(), weight)
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    stage = shard.stage_of(weight)
    if weight.expert is not None and stage == pipeline.rank() and sharers_of(weight).rank() == 0:
        experts = parallel_state.get_expert_model_parallel_group()
        shards = _hand_to_first(shards, shard.expert_rank_of(weight), experts, weight, like)
    if is_first_of_stage():
        shards = _hand_to_first(shards, stage, pipeline, weight, like)
    return shards


def _gather(own: torch.Tensor, weight: Weight) -> torch.Tensor | None:
    """The shards of all sharers, to the first of them."""
    group, num_parts = sharers_of(weight), num_parts_of(weight)
    if num_parts == 1:
        return own[None]
    shards = own.new_empty(num_parts, *own.shape) if group.rank() == 0 else None
    dist.gather(own, None if shards is None else list(shards), group=group, group_dst=0)
    return shards


def _hand_to_first(
    shards: torch.Tensor | None, owner: int, group: dist.ProcessGroup, weight: Weight, like: torch.Tensor
) -> torch.Tensor | None:
    """The shards that one rank of the group has, to the first rank of it."""
    if owner == 0:
        return shards
    # Broadcast, though one rank is meant: a message between two would need a connection of their own.
    if group.rank() != owner:
        num_parts = num_parts_of(weight)
        shards = like.new_empty(num_parts, *weight.shard_shape(num_parts))
    assert shards is not None
    dist.broadcast(shards, group=group, group_src=owner)
    return shards
