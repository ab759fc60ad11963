"""`TrainBackend` on Megatron-core: a network with a vocabulary above it.

Owns what is made of hidden states, and the weights' way to generators and files. Knows nothing of trajectories,
advantages or where weights go.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from async_rl.config.learner import OptimizerConfig
from async_rl.config.lora import LoraConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import Recompute
from learner import model_folder
from learner.backend import LazyLogits, LossFunction, ScoringBackend, StepResult, TokenScores
from learner.megatron import names
from learner.megatron.head import Head, output_layer, scored_rows
from learner.megatron.lora import Lora
from learner.megatron.network import Network
from learner.megatron.runtime import Ground
from learner.megatron.snapshot import MegatronSnapshot
from learner.megatron.weights import named_weights
from learner.output_layer import HiddenLogits, OutputLayer
from learner.packing import PackedSequences
from learner.token_scores import score_tokens
from learner.truncation import Truncation


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
        lora: LoraConfig | None = None,
        offload: bool = False,
    ) -> None:
        """Loads a Hugging Face folder; a `ModelError` where that cannot be done.

        Args:
            ground: that the process stands on, open until the backend is closed.
            model: folder and number format.
            optimizer: None for a model that only scores and exports.
            num_steps: optimizer steps of the whole run, which the schedule is stretched over.
            recompute: which activations are made again in the backward pass.
            lora: adapters that train in the place of all weights.
            offload: it lies in the host's memory between uses; of one that only scores, and not with lazy logits, which
                are read between uses.
        """
        assert not (offload and optimizer is not None), "the weights of a policy are read between uses"
        self._network = Network(
            ground,
            model,
            Head.VOCABULARY,
            optimizer,
            num_steps=num_steps,
            recompute=recompute,
            lora=lora,
            offload=offload,
        )

    def score(
        self,
        micro_batches: Sequence[PackedSequences],
        *,
        temperature: float,
        truncation: Truncation | None = None,
        with_sum_pi_squared: bool = False,
        reference: ScoringBackend | None = None,
    ) -> list[TokenScores]:
        """See `TrainBackend`."""
        theirs = None if reference is None else reference.lazy_logits(micro_batches)

        def read(hidden: Tensor, index: int) -> TokenScores:
            return score_tokens(
                self._rows(hidden, micro_batches[index]),
                self._output_layer(),
                micro_batches[index].labels.to(hidden.device),
                temperature=temperature,
                truncation=truncation,
                with_sum_pi_squared=with_sum_pi_squared,
                reference=None if theirs is None else theirs[index],
            ).cpu()

        return self._network.evaluate(micro_batches, read)

    def step(
        self,
        micro_batches: Sequence[PackedSequences],
        loss: LossFunction,
        *,
        temperature: float,
        truncation: Truncation | None = None,
        reference: ScoringBackend | None = None,
    ) -> StepResult:
        """See `TrainBackend`.

        The scores that `loss` sees lie on the model's device. With a reference its hidden states [M, H] of all
        micro-batches are kept for the step: both models' pipelines would wait for each other if they ran at once.
        """
        theirs = None if reference is None else reference.lazy_logits(micro_batches)

        def loss_of(hidden: Tensor, index: int) -> Tensor:
            scores = score_tokens(
                self._rows(hidden, micro_batches[index]),
                self._output_layer(trains=True),
                micro_batches[index].labels.to(hidden.device),
                temperature=temperature,
                truncation=truncation,
                reference=None if theirs is None else theirs[index],
            )
            return loss(scores, index)

        return self._network.step(micro_batches, loss_of)

    def lazy_logits(self, micro_batches: Sequence[PackedSequences]) -> Sequence[LazyLogits]:
        """See `TrainBackend`; empty on all but the last pipeline stage, which alone reads them."""
        assert not self._network.is_offloaded

        def read(hidden: Tensor, index: int) -> LazyLogits:
            return HiddenLogits(hidden=self._rows(hidden, micro_batches[index]), layer=self._output_layer())

        return self._network.visit(micro_batches, read)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend`; on the model's device, to the speaker, and nothing to other ranks."""
        lora = self._network.lora
        value = _itself if lora is None else lora.merged
        return named_weights(self._network.chunks, self._network.shape, value)

    def named_adapters(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend`; as `named_weights`."""
        network, lora = self._network, self._network.lora
        assert lora is not None
        return named_weights(network.chunks, network.shape, lora.scaled, names.adapters_of(network.shape, lora.rank))

    def without_adapters(self) -> "PolicyWithoutAdapters":
        """The model that training began with, as a frozen one: it shares this one's weights."""
        assert self._network.lora is not None
        return PolicyWithoutAdapters(self, self._network.lora)

    def named_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Gradients that the last `step` used, clipped, in Hugging Face names; valid until the next."""
        return named_weights(self._network.chunks, self._network.shape, _gradient_of)

    def snapshot(self) -> MegatronSnapshot:
        """See `Trainable`."""
        return self._network.snapshot()

    def load(self, folder: Path) -> None:
        """Takes back what a snapshot wrote; a `ModelError` where the folder is none, or of another model."""
        self._network.load(folder)

    def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder; config and tokenizer are those of the folder that was loaded."""
        network, tensors = self._network, self.named_weights()
        if dist.get_rank() == 0:
            model_folder.write_model(folder, source=network.folder, tensors=tensors, dtype=network.dtype)
        else:
            # They hand over what is theirs.
            list(tensors)

    def close(self) -> None:
        """Gives up the model; the ground stays."""
        self._network.close()

    def _rows(self, hidden: Tensor, sequences: PackedSequences) -> Tensor:
        is_split = self._network.top.config.sequence_parallel
        return scored_rows(hidden, sequences, Head.VOCABULARY, is_split=is_split)

    def _output_layer(self, *, trains: bool = False) -> OutputLayer:
        return output_layer(self._network.top, vocab_size=self._network.shape.vocab_size, trains=trains)


class PolicyWithoutAdapters:
    """A `ScoringBackend` over a policy whose adapters are taken off meanwhile."""

    def __init__(self, policy: MegatronBackend, lora: Lora) -> None:
        self._policy = policy
        self._lora = lora

    def score(
        self,
        micro_batches: Sequence[PackedSequences],
        *,
        temperature: float,
        truncation: Truncation | None = None,
        with_sum_pi_squared: bool = False,
        reference: ScoringBackend | None = None,
    ) -> list[TokenScores]:
        """See `ScoringBackend`."""
        with self._lora.taken_off():
            return self._policy.score(
                micro_batches,
                temperature=temperature,
                truncation=truncation,
                with_sum_pi_squared=with_sum_pi_squared,
                reference=reference,
            )

    def lazy_logits(self, micro_batches: Sequence[PackedSequences]) -> Sequence[LazyLogits]:
        """See `ScoringBackend`: the output layer, which comes later, has no adapter."""
        with self._lora.taken_off():
            return self._policy.lazy_logits(micro_batches)


def _itself(parameter: torch.nn.Parameter) -> Tensor:
    return parameter


def _gradient_of(parameter: torch.nn.Parameter) -> Tensor:
    gradient: Tensor = parameter.main_grad  # type: ignore[attr-defined]
    return gradient
