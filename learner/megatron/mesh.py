"""`Mesh` over Megatron's process groups.

Owns which group says what to whom. Knows nothing of what the rows mean.
"""

from collections.abc import Sequence
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from learner.megatron import runtime

_Said = TypeVar("_Said")


class MegatronMesh:
    """This rank's view of the ground that its process stands on."""

    @property
    def shard(self) -> int:
        """See `Mesh`."""
        return int(parallel_state.get_data_parallel_rank())

    @property
    def num_shards(self) -> int:
        """See `Mesh`."""
        return int(parallel_state.get_data_parallel_world_size())

    @property
    def is_speaker(self) -> bool:
        """See `Mesh`."""
        return dist.get_rank() == 0

    def merge(self, rows: Tensor) -> Tensor:
        """See `Mesh`.

        Each tensor and context position of each stage merges with its likes on the other shards: all have the same.
        """
        assert rows.device.type == "cpu", rows.device
        # Truth has no sum.
        whole = rows.to(torch.uint8) if rows.dtype == torch.bool else rows.clone()
        dist.all_reduce(whole, group=parallel_state.get_data_parallel_group_gloo())
        return whole.to(rows.dtype)

    def collect(self, said: _Said | None) -> Sequence[_Said]:
        """See `Mesh`."""
        everyone: list[_Said | None] = [None] * self.num_shards
        dist.all_gather_object(everyone, said, group=parallel_state.get_data_parallel_group_gloo())
        # Only the last stage heard its losses.
        received = [everyone]
        if parallel_state.get_pipeline_model_parallel_world_size() > 1:
            last = parallel_state.get_pipeline_model_parallel_last_rank()
            group = parallel_state.get_pipeline_model_parallel_group()
            dist.broadcast_object_list(received, src=last, group=group)
        assert all(words is not None for words in received[0])
        return cast(Sequence[_Said], received[0])

    def anyone(self, said: bool) -> bool:
        """See `Mesh`."""
        return self.largest(float(said)) > 0

    def largest(self, number: float) -> float:
        """See `Mesh`."""
        numbers = torch.tensor([number], dtype=torch.float64, device=runtime.device())
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        return float(numbers.item())

    def hear(self, said: _Said | None, *, rank: int = 0) -> _Said | None:
        """See `Mesh`."""
        words = [said]
        dist.broadcast_object_list(words, src=rank)
        return words[0]
