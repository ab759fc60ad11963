"""Data parallelism: a model's pieces beside their likes on other shards.

Owns Megatron's buffers of weights and gradients, and when they travel: gradients are summed while the backward pass
still runs, and changed weights are gathered while the next forward pass runs already. Knows nothing of the update.
"""

from collections.abc import Sequence

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from torch import Tensor

from learner.megatron.model import HiddenStates

BUCKET_SIZE: int | None = None
"""Numbers that travel at once; None: as many as Megatron thinks best."""


class Replicas:
    """This rank's pieces of the model, each with buffers that its data parallel peers have as well."""

    def __init__(self, chunks: Sequence[HiddenStates], *, num_replicas: int) -> None:
        # Alone there is nobody to wait for.
        self._overlaps = num_replicas > 1
        self.chunks = [_wrapped(chunk, is_first=i == 0, overlaps=self._overlaps) for i, chunk in enumerate(chunks)]
        self._is_gathered = True
        if self._overlaps:
            no_sync = [chunk.no_sync for chunk in self.chunks]
            chunks[0].config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]

    def gradients(self) -> list[Tensor]:
        """The buffers that all gradients are views of."""
        return [
            buffer.grad_data for chunk in self.chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)
        ]

    def forget_gradients(self) -> None:
        """Sets them to 0, before a step's first micro-batch."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()

    def changed(self) -> None:
        """The update that follows changes this rank's share of the weights alone; the next forward pass gathers."""
        self._is_gathered = not self._overlaps

    def gather(self) -> None:
        """Completes all weights, for those who read them without a forward pass."""
        if not self._is_gathered:
            for chunk in self.chunks:
                chunk.start_param_sync(force_sync=True)
            self._is_gathered = True

    def finish_head(self) -> None:
        """Completes the weight of the last stage's output layer.

        Megatron gathers a layer's weights when the layer is called; a head of ours reads the weight itself.
        """
        if self._overlaps:
            for weight in self.chunks[-1].module.output_layer.parameters():
                if weight.requires_grad:
                    self.chunks[-1].param_to_bucket_group[weight].finish_param_sync()


def _wrapped(chunk: HiddenStates, *, is_first: bool, overlaps: bool) -> DistributedDataParallel:
    return DistributedDataParallel(
        config=chunk.config,
        ddp_config=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=True,
            overlap_grad_reduce=overlaps,
            overlap_param_gather=overlaps,
            bucket_size=BUCKET_SIZE,
        ),
        module=chunk,
        # The first piece's backward pass is the last: only its gradients would travel after all others' are done.
        disable_bucketing=not is_first,
    )
