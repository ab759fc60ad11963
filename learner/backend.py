"""What the learner asks of a training library: score, value, step, hand over weights, save, load, export.

Owns the Protocols of policy and critic and the values that cross them. Knows no training library, no
trajectories and no files' formats. A loss sees what the model says of one micro-batch and returns a scalar
that is already divided by the normaliser of the whole batch, so that micro-batch losses add up to the batch's
loss.

Every method is called by all ranks of a learner at once, with the micro-batches of their shard: as many on every rank.

Legend: M scored tokens of a micro-batch, R of them in a tile; V vocabulary, K words of it in a tile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import torch

from async_rl.checksums import Checksum
from learner.packing import PackedSequences
from learner.truncation import Truncation


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """What the policy says of each scored token of a micro-batch, at the temperature asked for."""

    logprobs: torch.Tensor
    """[M] float32: log p(token | earlier tokens of its sequence)."""
    entropy: torch.Tensor
    """[M] float32, nats: of the distribution that the token was drawn from."""
    sum_pi_squared: torch.Tensor | None = None
    """[M] float32: Σ_v π(v)² of that distribution, without gradient. None: not asked for."""
    exact_kl: torch.Tensor | None = None
    """[M] float32, nats: KL(π‖reference) of that distribution, the sum over the vocabulary and not an estimate.
    None: no reference was given."""

    def cpu(self) -> Self:
        """The same on the CPU."""

        def moved(column: torch.Tensor | None) -> torch.Tensor | None:
            return None if column is None else column.cpu()

        return replace(
            self,
            logprobs=self.logprobs.cpu(),
            entropy=self.entropy.cpu(),
            sum_pi_squared=moved(self.sum_pi_squared),
            exact_kl=moved(self.exact_kl),
        )


LossFunction = Callable[[TokenScores, int], torch.Tensor]
"""(scores, index of the micro-batch) → scalar, divided by the normaliser of the whole batch.

Called on the last pipeline stage alone; the losses of all shards add up."""

ValueLoss = Callable[[torch.Tensor, int], torch.Tensor]
"""(values [M] float32 with gradient, aligned as `ValueBackend.values`, index of the micro-batch) → the same."""


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


class LazyLogits(Protocol):
    """Logits of a frozen model for a micro-batch, made tile by tile: [M, V] never stands in memory."""

    def tile(self, rows: slice, words: slice) -> torch.Tensor:
        """Logits [R, K] float32 on the model's device, undivided by any temperature, in memory of the caller's: of some
        scored tokens and some words of the vocabulary, or where ranks share it, of this rank's part."""


class Snapshot(Protocol):
    """A model at one moment, apart from the one that goes on training."""

    def write(self, folder: Path) -> Mapping[str, Checksum]:
        """Writes it to a folder, made if missing, and returns when everything is on the disk.

        In any thread, by all ranks at once, one snapshot after the other. The rank that speaks is told the checksum of
        each file that a rank wrote, by its name in the folder.

        Raises:
            ResourceError: the disk is full, or the folder cannot be written.
        """


class Trainable(Protocol):
    """A model with its optimizer, schedule and random state."""

    def snapshot(self) -> Snapshot:
        """What weights, optimizer, schedule and random state are now; training may go on while it is written."""

    def load(self, folder: Path) -> None:
        """Takes back what a snapshot wrote; training then goes on as if it had not stopped."""

    def close(self) -> None:
        """Gives up process groups and threads; nothing may be called afterwards."""


class ScoringBackend(Protocol):
    """A causal language model that says how likely tokens are."""

    def score(
        self,
        micro_batches: Sequence[PackedSequences],
        *,
        temperature: float,
        truncation: Truncation | None = None,
        with_sum_pi_squared: bool = False,
        reference: "ScoringBackend | None" = None,
    ) -> list[TokenScores]:
        """What the model says of each scored token, without gradient; on the CPU, on every rank.

        Args:
            micro_batches: at least one.
            temperature: that logits are divided by, the reference's too.
            truncation: score the words that top-k and top-p keep, the token itself always among them.
            with_sum_pi_squared: fill that field.
            reference: fill `exact_kl` with the KL to this model.
        """

    def lazy_logits(self, micro_batches: Sequence[PackedSequences]) -> Sequence[LazyLogits]:
        """A forward pass without gradient that stops before the output layer; valid until the next `step` or `load`."""


class TrainBackend(Trainable, ScoringBackend, Protocol):
    """A causal language model with its optimizer."""

    def step(
        self,
        micro_batches: Sequence[PackedSequences],
        loss: LossFunction,
        *,
        temperature: float,
        truncation: Truncation | None = None,
        reference: "ScoringBackend | None" = None,
    ) -> StepResult:
        """One optimizer step on the gradient of the sum of the micro-batch losses.

        The result does not depend on how the batch is split into micro-batches. If the loss or the
        gradient is not finite, nothing changes and the result says `skipped`. With a reference the scores
        that the loss sees have `exact_kl`, with its gradient, for a forward pass of the reference and a
        second and third one through its output layer.
        """

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights in Hugging Face names and layout. A tensor may be a view of the live weights:
        it is valid until the next `step` or `load`."""

    def named_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """LoRA's matrices alone, in PEFT's names and float32; `lora_B` has the scale inside. As `named_weights`."""

    def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder: config, safetensors, and the tokenizer of the source folder."""


class ValueBackend(Trainable, Protocol):
    """A critic: the expected sum of the rewards that are still to come, at each token."""

    def values(self, micro_batches: Sequence[PackedSequences]) -> list[torch.Tensor]:
        """V of the state that each scored token was sampled in, without gradient; [M] float32 on the CPU of every rank.

        Aligned like log-probabilities: what the model says after the token before.
        """

    def step(self, micro_batches: Sequence[PackedSequences], loss: ValueLoss) -> StepResult:
        """One optimizer step on the sum of the micro-batch losses; else as `TrainBackend.step`."""
