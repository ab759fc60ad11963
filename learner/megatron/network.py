"""A model of one head or another, on Megatron-core: the same path on the CPU with gloo and on GPUs with NCCL.

Owns this rank's pieces of the model, their optimizer, and Megatron's schedule over micro-batches. Knows nothing of what
the hidden states mean: that is the policy's and the critic's.

    evaluate   micro-batches ──► stages of the pipeline ──► hidden states ──► read   ──► broadcast to all stages
    step       micro-batches ──► stages of the pipeline ──► hidden states ──► loss_of ──► backward ──► update

Legend: T tokens of a micro-batch, H hidden size.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from async_rl.config.learner import OptimizerConfig
from async_rl.config.lora import LoraConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import Recompute
from learner.backend import StepResult
from learner.megatron import checkpoint, runtime
from learner.megatron.context import whole_row
from learner.megatron.head import Head
from learner.megatron.lora import Lora
from learner.megatron.micro_batch import MicroBatch
from learner.megatron.model import HiddenStates, build_chunks
from learner.megatron.offload import Holding, Offload, optimizer_tensors
from learner.megatron.optimizer import GuardedOptimizer
from learner.megatron.replicas import Replicas
from learner.megatron.runtime import Ground
from learner.megatron.snapshot import MegatronSnapshot
from learner.megatron.weights import load_shard
from learner.model_shape import read_shape
from learner.packing import PackedSequences

_Read = TypeVar("_Read")
_ForwardStep = tuple[Tensor, Callable[..., object]]

_NOTHING = PackedSequences.pack([[0]])
"""What the pipeline is fed where it needs one micro-batch more."""


class Network:
    """Weights that train, or without optimizer config frozen ones.

    Several may stand on one ground: they share its process groups and random states. All ranks call the methods at
    once, with as many micro-batches.
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
        lora: LoraConfig | None = None,
        offload: bool = False,
    ) -> None:
        """Loads this rank's part of a Hugging Face folder; a `ModelError` where that cannot be done.

        Args:
            ground: that the process stands on, open until the network is closed.
            model: folder and number format.
            head: what stands above the last norm.
            optimizer: None for a model that does not train.
            num_steps: optimizer steps of the whole run, which the schedule is stretched over.
            recompute: which activations are made again in the backward pass.
            lora: adapters that train in the place of all weights.
            offload: between uses everything lies in the host's memory. What is read of the model meanwhile is nothing.
        """
        self.folder = Path(model.path)
        self.dtype: torch.dtype = getattr(torch, model.dtype.value)
        self.shape = read_shape(self.folder)
        self._ground = ground
        self._parallel = ground.parallel
        self._chunks = build_chunks(self.shape, self.dtype, head, parallel=ground.parallel, recompute=recompute)
        load_shard(self._chunks, self.shape, self.folder, head)
        for chunk in self._chunks:
            chunk.requires_grad_(optimizer is not None)
        self.lora = None if lora is None else Lora(self._chunks, lora, seed=ground.seed)
        # What Megatron's schedule runs.
        self._pieces: Sequence[torch.nn.Module] = self._chunks
        self._replicas: Replicas | None = None
        self._optimizer: GuardedOptimizer | None = None
        if optimizer is not None:
            self._replicas = Replicas(self._chunks, num_replicas=ground.parallel.dp * ground.parallel.cp)
            self._pieces = self._replicas.chunks
            self._optimizer = GuardedOptimizer(self._replicas.chunks, optimizer, num_steps=num_steps)
        self._offload = self._sent_away() if offload else None

    @property
    def is_offloaded(self) -> bool:
        """Whether it lies in the host's memory between uses."""
        return self._offload is not None

    @property
    def chunks(self) -> Sequence[HiddenStates]:
        """This rank's pieces of the model, first to last, with all weights as the last step left them.

        Asked for by all ranks at once: what a step changed may still be on its way from the ranks that changed it.
        """
        if self._replicas is not None:
            self._replicas.gather()
        return self._chunks

    @property
    def top(self) -> HiddenStates:
        """The last piece of a rank on the last stage, whose output layer is a head's; for `read` and `loss_of`."""
        assert self._chunks[-1].post_process
        return self._chunks[-1]

    def visit(self, micro_batches: Sequence[PackedSequences], read: Callable[[Tensor, int], _Read]) -> list[_Read]:
        """What `read` makes of each micro-batch, without gradient; empty on all but the last pipeline stage.

        Args:
            micro_batches: at least one.
            read: (hidden states behind the last norm, index of the micro-batch) → anything. The hidden states are
                [T, 1, H] on the model's device, or with sequence parallelism this rank's rows of them, where T may be
                filled up behind the sequences.
        """

        def forward_step(inputs: Iterator[MicroBatch], piece: torch.nn.Module) -> _ForwardStep:
            batch = next(inputs)
            return self._hidden(batch, piece), partial(read_hidden, batch.index)

        def read_hidden(index: int | None, hidden: Tensor, *, non_loss_data: bool) -> _Read | None:
            assert non_loss_data
            return None if index is None else read(hidden, index)

        with torch.no_grad(), self._back(Holding.WEIGHTS):
            results = self._run(micro_batches, forward_step, forward_only=True)
        return cast(list[_Read], results[-len(micro_batches) :])

    def evaluate(self, micro_batches: Sequence[PackedSequences], read: Callable[[Tensor, int], _Read]) -> list[_Read]:
        """The same on every rank; what `read` gives can be pickled, and its tensors lie on the CPU."""
        results = self.visit(micro_batches, read)
        if self._parallel.pp > 1:
            said: list[object] = [results]
            last = parallel_state.get_pipeline_model_parallel_last_rank()
            dist.broadcast_object_list(said, src=last, group=parallel_state.get_pipeline_model_parallel_group())
            results = cast(list[_Read], said[0])
        return results

    def step(self, micro_batches: Sequence[PackedSequences], loss_of: Callable[[Tensor, int], Tensor]) -> StepResult:
        """One optimizer step on the gradient of the sum of all micro-batch losses of all shards.

        Args:
            micro_batches: at least one.
            loss_of: (hidden states, as for `visit`, index of the micro-batch) → scalar; called on the last stage.
        """
        assert self._optimizer is not None
        lr = self._optimizer.lr
        with self._back(Holding.WEIGHTS, Holding.GRADIENTS, Holding.OPTIMIZER):
            total = self._accumulate(micro_batches, loss_of)
            grad_norm, is_updated = self._optimizer.step(total)
        return StepResult(loss=total, grad_norm=grad_norm, lr=lr, skipped=not is_updated)

    def snapshot(self) -> MegatronSnapshot:
        """Copies weights, optimizer, schedule and random states to the host's memory."""
        assert self._optimizer is not None
        with self._back(Holding.WEIGHTS, Holding.OPTIMIZER):
            return checkpoint.take_snapshot(self._ground, self.chunks, self._optimizer)

    def load(self, folder: Path) -> None:
        """Takes back what a snapshot wrote; a `ModelError` where the folder is none, or of another model."""
        assert self._optimizer is not None
        with self._back(Holding.WEIGHTS, Holding.OPTIMIZER):
            checkpoint.load(folder, self._ground, self.chunks, self._optimizer)

    def close(self) -> None:
        """Gives up the model; the ground stays."""

    def _sent_away(self) -> Offload:
        tensors: dict[Holding, Callable[[], Iterable[Tensor]]] = {
            Holding.WEIGHTS: lambda: (weight for chunk in self._chunks for weight in chunk.parameters())
        }
        if self._replicas is not None and self._optimizer is not None:
            tensors[Holding.GRADIENTS] = self._replicas.gradients
            tensors[Holding.OPTIMIZER] = partial(optimizer_tensors, self._optimizer.optimizer)
        return Offload(tensors, is_frozen=self._optimizer is None)

    def _back(self, *holdings: Holding) -> AbstractContextManager[None]:
        """For a use of the model."""
        return nullcontext() if self._offload is None else self._offload.back(*holdings)

    def _accumulate(self, micro_batches: Sequence[PackedSequences], loss_of: Callable[[Tensor, int], Tensor]) -> float:
        """Leaves the gradient in the model's buffers and returns the loss, the same on every rank."""

        def forward_step(inputs: Iterator[MicroBatch], piece: torch.nn.Module) -> _ForwardStep:
            batch = next(inputs)
            return self._hidden(batch, piece), partial(loss_of_hidden, batch.index)

        def loss_of_hidden(index: int | None, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value = torch.zeros((), device=hidden.device) if index is None else loss_of(hidden, index)
            assert value.ndim == 0, value.shape
            if not value.requires_grad:
                value = value + self._no_gradient(hidden)
            # Each context parallel rank has the whole row's loss, and they are added up.
            value = value / self._parallel.cp
            # No token count: nobody divides by it (see the model's config).
            return value, value.new_zeros((), dtype=torch.int), value.detach()

        assert self._replicas is not None and self._optimizer is not None
        self._replicas.forget_gradients()
        self._optimizer.optimizer.zero_grad()
        losses = self._run(micro_batches, forward_step, forward_only=False)
        self._replicas.changed()
        total = torch.zeros((), dtype=torch.float64, device=runtime.device())
        for value in losses:
            total += cast(Tensor, value)
        # Stages before the last heard nothing, and add 0.
        dist.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return float(total)

    def _no_gradient(self, hidden: Tensor) -> Tensor:
        """0 with gradients of 0: stages before wait for one, and data parallel peers for that of each weight."""
        head = sum((weight.float().sum() for weight in self.top.output_layer.parameters()), torch.zeros(()))
        return 0.0 * (hidden.float().sum() + head)

    def _hidden(self, batch: MicroBatch, piece: torch.nn.Module) -> Tensor:
        hidden = batch.hidden(piece)
        if piece is not self._pieces[-1] or not self._chunks[-1].post_process:
            return hidden
        if self._replicas is not None:
            self._replicas.finish_head()
        return whole_row(hidden, is_split=self._parallel.sequence_parallel)

    def _run(
        self, micro_batches: Sequence[PackedSequences], forward_step: Callable[..., _ForwardStep], *, forward_only: bool
    ) -> list[object]:
        """Megatron's schedule; on the last stage what the inner function returned for each micro-batch."""
        assert micro_batches
        inputs = self._inputs(micro_batches)
        results: list[object] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(inputs) for _ in self._pieces],
            model=list(self._pieces),
            num_microbatches=len(inputs),
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return results

    def _inputs(self, micro_batches: Sequence[PackedSequences]) -> list[MicroBatch]:
        parallel = self._parallel
        # Interleaved stages take turns of pp micro-batches. The last one must be real: behind it gradients are summed.
        num_more = -len(micro_batches) % parallel.pp if parallel.vpp > 1 else 0
        numbered: list[tuple[int | None, PackedSequences]] = [(None, _NOTHING)] * num_more
        numbered += enumerate(micro_batches)
        multiple = parallel.cp * (parallel.tp if parallel.sequence_parallel else 1)
        return [
            MicroBatch.of(sequences, index, multiple=multiple, device=runtime.device()) for index, sequences in numbered
        ]
