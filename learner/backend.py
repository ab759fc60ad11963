"""What the learner asks of a training library: score, step, hand over weights, save, load, export.

Owns the Protocol and the values that cross it. Knows no training library, no trajectories and no
files' formats. A loss sees the scores of one micro-batch and returns a scalar that is already divided
by the normaliser of the whole batch, so that micro-batch losses add up to the batch's loss.

Legend: T tokens of a micro-batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from learner.packing import PackedSequences


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """What the policy says of each token of a micro-batch, at the temperature asked for."""

    logprobs: torch.Tensor
    """[T] float32: log p(token t | earlier tokens of its sequence); 0 at each sequence's first token."""
    entropy: torch.Tensor
    """[T] float32, nats: of the distribution that token t was drawn from; 0 at each first token."""


LossFunction = Callable[[TokenScores, int], torch.Tensor]
"""(scores, index of the micro-batch) → scalar, divided by the normaliser of the whole batch."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What an optimizer step did."""

    loss: float
    """Sum of the micro-batch losses."""
    grad_norm: float
    """Euclidean norm of the whole gradient, before clipping."""
    lr: float
    """Learning rate that the step used, or would have used had it not been skipped."""
    skipped: bool
    """Loss or gradient were not finite: weights, optimizer and schedule are as before."""


class TrainBackend(Protocol):
    """A causal language model with its optimizer."""

    def score(self, sequences: PackedSequences, *, temperature: float) -> TokenScores:
        """Log-probabilities and entropies without gradient."""

    def step(self, micro_batches: Sequence[PackedSequences], loss: LossFunction, *, temperature: float) -> StepResult:
        """One optimizer step on the gradient of the sum of the micro-batch losses.

        The result does not depend on how the batch is split into micro-batches. If the loss or the
        gradient is not finite, nothing changes and the result says `skipped`.
        """

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights in Hugging Face names and layout. A tensor may be a view of the live weights:
        it is valid until the next `step` or `load`."""

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer, schedule and random state to a folder, made if missing."""

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote; training then goes on as if it had not stopped."""

    def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder: config, safetensors, and the tokenizer of the source folder."""

    def close(self) -> None:
        """Gives up process groups and threads; nothing may be called afterwards."""
