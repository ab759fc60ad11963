"""What this rank holds of a model: its layers, its experts, its part of each matrix.

Owns the way from the table of names to a rank's parameters and groups. Knows nothing of files.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel

from learner.megatron.names import Split, Weight
from learner.model_shape import ModelShape


class Shard:
    """A rank's parameters, by the table's weights. All ranks make theirs at once."""

    def __init__(self, chunks: Sequence[GPTModel], shape: ModelShape) -> None:
        """`chunks` are this rank's pieces of the model: one, or with an interleaved pipeline several."""
        self._of_layer: dict[int, dict[str, torch.nn.Parameter]] = {
            layer.layer_number - 1: dict(layer.named_parameters()) for chunk in chunks for layer in chunk.decoder.layers
        }
        self._outside: dict[str, torch.nn.Parameter] = {
            name: parameter
            for chunk in chunks
            for name, parameter in chunk.named_parameters()
            if not name.startswith("decoder.layers.")
        }
        num_experts = 0 if shape.moe is None else shape.moe.num_experts
        self._num_experts: int = num_experts // parallel_state.get_expert_model_parallel_world_size()
        self._stages = self._meet_stages()

    def _meet_stages(self) -> dict[int | str, int]:
        """Which stage has which layer, and what stands outside of layers."""
        everyone: list[list[int | str]] = [[]] * parallel_state.get_pipeline_model_parallel_world_size()
        group = parallel_state.get_pipeline_model_parallel_group()
        dist.all_gather_object(everyone, [*self._of_layer, *self._outside], group=group)
        # The first stage's embedding is the model's, where tied ones stand at both ends.
        return {part: stage for stage, parts in reversed(list(enumerate(everyone))) for part in parts}

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All of this rank, each once."""
        layers = [parameter for of_layer in self._of_layer.values() for parameter in of_layer.values()]
        return [*self._outside.values(), *layers]

    def stage_of(self, weight: Weight) -> int:
        """The pipeline stage that holds it."""
        return self._stages[weight.megatron if weight.layer is None else weight.layer]

    def expert_rank_of(self, weight: Weight) -> int:
        """The expert parallel rank that holds it."""
        assert weight.expert is not None
        return weight.expert // self._num_experts

    def find(self, weight: Weight) -> torch.nn.Parameter | None:
        """None where other ranks have it."""
        if weight.layer is None:
            return self._outside.get(weight.megatron)
        if weight.layer not in self._of_layer:
            return None
        if weight.expert is None:
            return self._of_layer[weight.layer][weight.megatron]
        if self.expert_rank_of(weight) != parallel_state.get_expert_model_parallel_rank():
            return None
        return self._of_layer[weight.layer][weight.megatron.format(weight.expert % self._num_experts)]


def sharers_of(weight: Weight) -> dist.ProcessGroup:
    """The ranks that share a weight's matrix."""
    group: dist.ProcessGroup = (
        parallel_state.get_tensor_model_parallel_group()
        if weight.expert is None
        else parallel_state.get_expert_tensor_parallel_group()
    )
    return group


def num_parts_of(weight: Weight) -> int:
    """Into how many shards it is split."""
    return 1 if weight.split is Split.NONE else sharers_of(weight).size()


def is_first_copy(weight: Weight) -> bool:
    """Whether this rank is of the first of those copies of the model that differ in their batches alone."""
    if weight.expert is None:
        return int(parallel_state.get_data_parallel_rank(with_context_parallel=True)) == 0
    return int(parallel_state.get_expert_data_parallel_rank()) == 0


def is_first_of_stage() -> bool:
    """Whether this rank is the first of its pipeline stage: the speaker, or one in its pipeline."""
    copy = int(parallel_state.get_data_parallel_rank(with_context_parallel=True))
    return (copy, int(parallel_state.get_tensor_model_parallel_rank())) == (0, 0)
