"""`TrainBackend` on Megatron-core: the same path on the CPU with gloo and on GPUs with NCCL.

Owns a model and its optimizer, and runs Megatron's schedule over micro-batches. Knows nothing of
trajectories, advantages or where weights go.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func

from async_rl.config.schema import ModelConfig, OptimizerConfig
from async_rl.errors import ModelError
from learner import model_folder
from learner.backend import LossFunction, StepResult, TokenScores
from learner.megatron import checkpoint, runtime
from learner.megatron.model import build_model, forward, load_weights, named_weights
from learner.megatron.optimizer import GuardedOptimizer
from learner.megatron.scores import token_scores
from learner.model_shape import read_shape
from learner.packing import PackedSequences

_ForwardStep = tuple[torch.Tensor, Callable[..., object]]


class MegatronBackend:
    """A policy that trains, or without optimizer config a frozen one that only scores.

    Several may live in one process: they share its process groups and random states.
    """

    def __init__(
        self,
        model: ModelConfig,
        optimizer: OptimizerConfig | None,
        *,
        num_steps: int,
        seed: int,
        num_threads: int,
    ) -> None:
        """Loads a Hugging Face folder; a `ModelError` where that cannot be done.

        Args:
            model: folder and number format.
            optimizer: None for a model that only scores and exports.
            num_steps: optimizer steps of the whole run, which the schedule is stretched over.
            seed: of the random states; the first backend of a process sets them.
            num_threads: on the CPU; likewise.
        """
        self._folder = Path(model.path)
        self._dtype = getattr(torch, model.dtype.value)
        self._shape = read_shape(self._folder)
        weights = dict(model_folder.read_weights(self._folder))
        runtime.acquire(seed=seed, num_threads=num_threads)
        self._model: GPTModel = build_model(self._shape, self._dtype)
        try:
            load_weights(self._model, self._shape, weights)
        except ModelError:
            runtime.release()
            raise
        self._optimizer: GuardedOptimizer | None = None
        self._network: torch.nn.Module = self._model.requires_grad_(False)
        if optimizer is not None:
            self._network = self._distributed(self._model.requires_grad_(True))
            self._optimizer = GuardedOptimizer(self._network, optimizer, num_steps=num_steps)

    def score(self, sequences: PackedSequences, *, temperature: float) -> TokenScores:
        """Log-probabilities and entropies [T] on the CPU, without gradient."""

        def forward_step(micro_batches: Iterator[PackedSequences], network: torch.nn.Module) -> _ForwardStep:
            batch = next(micro_batches)
            return forward(network, batch), partial(scores_of, batch)

        def scores_of(batch: PackedSequences, logits: torch.Tensor, *, non_loss_data: bool) -> TokenScores:
            assert non_loss_data
            return token_scores(logits[0], batch, temperature=temperature)

        with torch.no_grad():
            (scores,) = self._run([sequences], forward_step, forward_only=True)
        assert isinstance(scores, TokenScores)
        return TokenScores(logprobs=scores.logprobs.cpu(), entropy=scores.entropy.cpu())

    def step(self, micro_batches: Sequence[PackedSequences], loss: LossFunction, *, temperature: float) -> StepResult:
        """One optimizer step on the gradient of the sum of the micro-batch losses.

        The scores that `loss` sees lie on the model's device.
        """
        assert self._optimizer is not None and micro_batches
        lr = self._optimizer.lr
        total = self._accumulate(micro_batches, loss, temperature)
        grad_norm, is_updated = self._optimizer.step(total)
        return StepResult(loss=total, grad_norm=grad_norm, lr=lr, skipped=not is_updated)

    def _accumulate(self, micro_batches: Sequence[PackedSequences], loss: LossFunction, temperature: float) -> float:
        """Leaves the gradient in the model's buffers and returns the loss, the same on every rank."""

        def forward_step(batches: Iterator[tuple[int, PackedSequences]], network: torch.nn.Module) -> _ForwardStep:
            index, batch = next(batches)
            return forward(network, batch), partial(loss_of, index, batch)

        def loss_of(
            index: int, batch: PackedSequences, logits: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            value = loss(token_scores(logits[0], batch, temperature=temperature), index)
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

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights in Hugging Face names and layout, on the model's device; valid until the next `step` or `load`."""
        return named_weights(self._model, self._shape, lambda parameter: parameter)

    def named_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gradients that the last `step` used, clipped, in Hugging Face names; valid until the next."""
        assert self._optimizer is not None
        return named_weights(self._model, self._shape, lambda parameter: parameter.main_grad)

    def save(self, folder: Path) -> None:
        """Writes a Megatron distributed checkpoint: weights, optimizer, schedule, random states."""
        assert self._optimizer is not None
        checkpoint.save(folder, self._model, self._optimizer)

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote; a `ModelError` where the folder is none, or of another model."""
        assert self._optimizer is not None
        checkpoint.load(folder, self._model, self._optimizer)

    def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder; config and tokenizer are those of the folder that was loaded."""
        model_folder.write_model(folder, source=self._folder, tensors=self.named_weights(), dtype=self._dtype)

    def close(self) -> None:
        """Gives up the process groups if no other backend uses them."""
        runtime.release()

    def _distributed(self, model: GPTModel) -> DistributedDataParallel:
        return DistributedDataParallel(
            config=model.config,
            ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
            module=model,
        )

    def _run(
        self, micro_batches: list[object], forward_step: Callable[..., _ForwardStep], *, forward_only: bool
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
