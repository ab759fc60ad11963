"""`TrainBackend` on Megatron-core: a network with a vocabulary above it.

Owns what is made of logits, and the weights' way to generators and files. Knows nothing of trajectories,
advantages or where weights go.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from async_rl.config.parallel import Recompute
from async_rl.config.schema import ModelConfig, OptimizerConfig
from learner import model_folder
from learner.backend import LossFunction, StepResult, TokenScores, TrainBackend
from learner.megatron.head import Head, HiddenLogits
from learner.megatron.network import Network
from learner.megatron.runtime import Ground
from learner.megatron.weights import named_weights
from learner.packing import PackedSequences
from learner.token_scores import token_scores


class MegatronBackend:
    """A policy that trains, or without optimizer config a frozen one that only scores.

    Several may stand on one ground: they share its process groups and random states.
    """

    def __init__(
        self,
        ground: Ground,
        model: ModelConfig,
        optimizer: OptimizerConfig | None,
        *,
        num_steps: int,
        recompute: Recompute = Recompute.none,
    ) -> None:
        """Loads a Hugging Face folder; a `ModelError` where that cannot be done.

        Args:
            ground: that the process stands on, open until the backend is closed.
            model: folder and number format.
            optimizer: None for a model that only scores and exports.
            num_steps: optimizer steps of the whole run, which the schedule is stretched over.
            recompute: which activations are made again in the backward pass.
        """
        self._network = Network(ground, model, Head.VOCABULARY, optimizer, num_steps=num_steps, recompute=recompute)

    def score(
        self,
        sequences: PackedSequences,
        *,
        temperature: float,
        with_sum_pi_squared: bool = False,
        reference: TrainBackend | None = None,
    ) -> TokenScores:
        """What the model says of each token [T], on the CPU, without gradient."""
        theirs = None if reference is None else reference.lazy_logits(sequences)

        def read(logits: torch.Tensor) -> TokenScores:
            return token_scores(
                logits[0],
                sequences,
                temperature=temperature,
                with_sum_pi_squared=with_sum_pi_squared,
                reference=theirs,
            )

        return self._network.evaluate(sequences, read).cpu()

    def step(
        self,
        micro_batches: Sequence[PackedSequences],
        loss: LossFunction,
        *,
        temperature: float,
        reference: TrainBackend | None = None,
    ) -> StepResult:
        """One optimizer step on the gradient of the sum of the micro-batch losses.

        The scores that `loss` sees lie on the model's device. With a reference its hidden states [T, H] of all
        micro-batches are kept for the step: both models' pipelines would wait for each other if they ran at once.
        """
        theirs = None if reference is None else [reference.lazy_logits(batch) for batch in micro_batches]

        def loss_of(logits: torch.Tensor, index: int) -> torch.Tensor:
            scores = token_scores(
                logits[0],
                micro_batches[index],
                temperature=temperature,
                reference=None if theirs is None else theirs[index],
            )
            return loss(scores, index)

        return self._network.step(micro_batches, loss_of)

    def lazy_logits(self, sequences: PackedSequences) -> HiddenLogits:
        """A forward pass without gradient that stops before the output layer; valid until the next `step` or `load`."""
        return self._network.lazy_logits(sequences)

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights in Hugging Face names and layout, on the model's device; valid until the next `step` or `load`."""
        return named_weights([self._network.model], self._network.shape, lambda parameter: parameter)

    def named_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gradients that the last `step` used, clipped, in Hugging Face names; valid until the next."""
        return named_weights([self._network.model], self._network.shape, lambda parameter: parameter.main_grad)

    def save(self, folder: Path) -> None:
        """Writes a Megatron distributed checkpoint: weights, optimizer, schedule, random states."""
        self._network.save(folder)

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote; a `ModelError` where the folder is none, or of another model."""
        self._network.load(folder)

    def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder; config and tokenizer are those of the folder that was loaded."""
        network = self._network
        model_folder.write_model(folder, source=network.folder, tensors=self.named_weights(), dtype=network.dtype)

    def close(self) -> None:
        """Gives up the model; the ground stays."""
        self._network.close()
