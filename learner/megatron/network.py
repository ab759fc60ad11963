"""A model of one head or another, on Megatron-core: the same path on the CPU with gloo and on GPUs with NCCL.

Owns the model, its optimizer and Megatron's schedule over micro-batches. Knows nothing of what its output means:
that is the policy's and the critic's.

Legend: T tokens of a micro-batch, V vocabulary, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func

from async_rl.config.parallel import Recompute
from async_rl.config.schema import ModelConfig, OptimizerConfig
from learner.backend import StepResult
from learner.megatron import checkpoint
from learner.megatron.head import Head, HiddenLogits, taken_off
from learner.megatron.model import build_model, forward
from learner.megatron.optimizer import GuardedOptimizer
from learner.megatron.runtime import Ground
from learner.megatron.weights import load_shard
from learner.model_shape import read_shape
from learner.packing import PackedSequences

_Read = TypeVar("_Read")
_ForwardStep = tuple[torch.Tensor, Callable[..., object]]


class Network:
    """Weights that train, or without optimizer config frozen ones.

    Several may stand on one ground: they share its process groups and random states.
    """

    def __init__(
        self,
        ground: Ground,
        model: ModelConfig,
        head: Head,
        optimizer: OptimizerConfig | None,
        *,
        num_steps: int,
        recompute: Recompute,
    ) -> None:
        """Loads a Hugging Face folder; a `ModelError` where that cannot be done.

        Args:
            ground: that the process stands on, open until the network is closed.
            model: folder and number format.
            head: what stands above the last norm.
            optimizer: None for a model that does not train.
            num_steps: optimizer steps of the whole run, which the schedule is stretched over.
            recompute: which activations are made again in the backward pass.
        """
        self.folder = Path(model.path)
        self.dtype: torch.dtype = getattr(torch, model.dtype.value)
        self.shape = read_shape(self.folder)
        self.model: GPTModel = build_model(self.shape, self.dtype, head)
        load_shard([self.model], self.shape, self.folder, head)
        self._optimizer: GuardedOptimizer | None = None
        self._network: torch.nn.Module = self.model.requires_grad_(False)
        if optimizer is not None:
            self._network = _distributed(self.model.requires_grad_(True))
            self._optimizer = GuardedOptimizer(self._network, optimizer, num_steps=num_steps)

    def evaluate(self, sequences: PackedSequences, read: Callable[[torch.Tensor], _Read]) -> _Read:
        """What `read` makes of the output [1, T, V or 1], without gradient."""

        def forward_step(micro_batches: Iterator[PackedSequences], network: torch.nn.Module) -> _ForwardStep:
            return forward(network, next(micro_batches)), read_output

        def read_output(output: torch.Tensor, *, non_loss_data: bool) -> _Read:
            assert non_loss_data
            return read(output)

        with torch.no_grad():
            (result,) = self._run([sequences], forward_step, forward_only=True)
        return cast(_Read, result)

    def lazy_logits(self, sequences: PackedSequences) -> HiddenLogits:
        """A forward pass that leaves the output layer for later; valid until the weights change."""
        with taken_off(self.model):
            hidden = self.evaluate(sequences, lambda hidden: hidden)
        return HiddenLogits(model=self.model, hidden=hidden)

    def step(
        self, micro_batches: Sequence[PackedSequences], loss: Callable[[torch.Tensor, int], torch.Tensor]
    ) -> StepResult:
        """One optimizer step on the gradient of the sum of the micro-batch losses.

        Args:
            micro_batches: at least one.
            loss: (output [1, T, V or 1] on the model's device, index of the micro-batch) → scalar.
        """
        assert self._optimizer is not None and micro_batches
        lr = self._optimizer.lr
        total = self._accumulate(micro_batches, loss)
        grad_norm, is_updated = self._optimizer.step(total)
        return StepResult(loss=total, grad_norm=grad_norm, lr=lr, skipped=not is_updated)

    def save(self, folder: Path) -> None:
        """Writes a Megatron distributed checkpoint: weights, optimizer, schedule, random states."""
        assert self._optimizer is not None
        checkpoint.save(folder, self.model, self._optimizer)

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote; a `ModelError` where the folder is none, or of another model."""
        assert self._optimizer is not None
        checkpoint.load(folder, self.model, self._optimizer)

    def close(self) -> None:
        """Gives up the model; the ground stays."""

    def _accumulate(
        self, micro_batches: Sequence[PackedSequences], loss: Callable[[torch.Tensor, int], torch.Tensor]
    ) -> float:
        """Leaves the gradient in the model's buffers and returns the loss, the same on every rank."""

        def forward_step(batches: Iterator[tuple[int, PackedSequences]], network: torch.nn.Module) -> _ForwardStep:
            index, batch = next(batches)
            return forward(network, batch), partial(loss_of, index)

        def loss_of(index: int, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            value = loss(output, index)
            assert value.ndim == 0, value.shape
            # No token count: nobody divides by it (see the model's config).
            return value, value.new_zeros((), dtype=torch.int), value.detach()

        assert isinstance(self._network, DistributedDataParallel) and self._optimizer is not None
        self._network.zero_grad_buffer()
        self._optimizer.optimizer.zero_grad()
        losses = self._run(list(enumerate(micro_batches)), forward_step, forward_only=False)
        total = torch.stack([value for value in losses if isinstance(value, torch.Tensor)]).double().sum()
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return float(total)

    def _run(
        self, micro_batches: Sequence[object], forward_step: Callable[..., _ForwardStep], *, forward_only: bool
    ) -> list[object]:
        """Megatron's schedule; on the last pipeline stage what the loss function returned for each micro-batch."""
        results: list[object] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(micro_batches),
            model=self._network,
            num_microbatches=len(micro_batches),
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return results


def _distributed(model: GPTModel) -> DistributedDataParallel:
    return DistributedDataParallel(
        config=model.config,
        ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
        module=model,
    )
