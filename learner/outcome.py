"""What a batch's update knew before its first step, and what its steps did and said.

Owns values between the updater and the metrics. Computes nothing.

Legend: N trajectories, T response positions; n trained tokens and S sequences, one for each time that they trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from correction.correction import Corrected
from learner.advantages.inputs import Advantages
from learner.backend import StepResult
from learner.losses.policy_loss import PolicyLoss
from learner.losses.value import ValueLossResult
from learner.mesh import Mesh
from learner.micro_batch_plan import MicroBatchPlan
from learner.rewards import ShapedRewards
from learner.scoring import ModelScores


@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """What is fixed before a batch's first optimizer step."""

    models: ModelScores
    corrected: Corrected | None
    """None where π_prox is taken in the step's own pass: weights are made there, and nothing is rejected."""
    mask: Tensor
    """[N, T] bool: tokens that train; those of the batch that were not rejected."""
    rewards: ShapedRewards
    advantages: Advantages


class TrainedTokens(NamedTuple):
    """What the loss said of the tokens that train; [n] each, but for sums."""

    log_ratio_sums: Tensor
    """[S] Σ_t log π/π_prox of each sequence."""
    ratios: Tensor
    """π/π_prox."""
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor
    entropy: Tensor
    reference_kl: Tensor

    @classmethod
    def of(cls, mask: Tensor, loss: PolicyLoss) -> Self:
        """Picks them by the mask [S, T'] bool of a micro-batch, as `pick_tokens` does."""
        said = loss.surrogate
        columns = (
            said.ratios, said.clipped_low, said.clipped_high, said.clipped_dual, loss.entropy, loss.reference_kl
        )  # fmt: skip
        return cls(loss.log_ratio_sums, *pick_tokens(mask, *columns))

    def cpu(self) -> Self:
        """The same on the CPU; waits for the device."""
        return type(self)(*(column.cpu() for column in self))


class ValuedTokens(NamedTuple):
    """What the value loss said of the tokens that train; [n] each."""

    values: Tensor
    """At the step, before it."""
    clipped: Tensor

    @classmethod
    def of(cls, mask: Tensor, loss: ValueLossResult) -> Self:
        """Picks them by the mask [S, T'] bool of a micro-batch, as `pick_tokens` does."""
        return cls(*pick_tokens(mask, loss.values, loss.clipped))

    def cpu(self) -> Self:
        """The same on the CPU; waits for the device."""
        return type(self)(*(column.cpu() for column in self))


def pick_tokens(mask: Tensor, *columns: Tensor) -> list[Tensor]:
    """What the mask holds of columns of its shape, on their device: a mask on the CPU knows how many those are, and
    nobody has to wait for what the device is busy with."""
    places = mask.flatten().nonzero().squeeze(1).to(columns[0].device)
    return [column.flatten()[places] for column in columns]


class ShardSaid(NamedTuple):
    """What a shard heard of its own sequences."""

    tokens: list[TrainedTokens]
    values: list[ValuedTokens]
    rows: list[int]
    logprobs: Tensor
    """[n, T] of those rows."""


@dataclass
class UpdateOutcome:
    """What the optimizer steps of a batch did and said; of this rank's sequences until `gather`, then of all."""

    logprobs: Tensor
    """[N, T] of the policy when it first trained each token, on the CPU; no data outside of the responses."""
    kl_coef: float
    """That the batch was trained with."""
    steps: list[StepResult] = field(default_factory=list)
    critic_steps: list[StepResult] = field(default_factory=list)
    plans: list[MicroBatchPlan] = field(default_factory=list)
    """Of each mini-batch."""
    tokens: list[TrainedTokens] = field(default_factory=list)
    """One a micro-batch, of all steps; on the CPU, as the values."""
    values: list[ValuedTokens] = field(default_factory=list)
    corrected: Corrected | None = None
    """Of the whole batch, once all steps are done: the scores', or made of `logprobs`."""

    def gather(self, mesh: Mesh, rows: Sequence[int]) -> None:
        """Takes in what the steps of other shards, and other stages of a pipeline, said; all ranks at once.

        Args:
            mesh: of the ranks.
            rows: of this rank's sequences.
        """
        own = ShardSaid(self.tokens, self.values, list(rows), self.logprobs[list(rows)])
        said = mesh.collect(own)
        self.tokens = [tokens for shard in said for tokens in shard.tokens]
        self.values = [values for shard in said for values in shard.values]
        for shard in said:
            self.logprobs[shard.rows] = shard.logprobs

    @property
    def trained_tokens(self) -> TrainedTokens:
        """Of all micro-batches together."""
        return TrainedTokens(*(torch.cat(column) for column in zip(*self.tokens, strict=True)))

    @property
    def valued_tokens(self) -> ValuedTokens:
        """Of all micro-batches together; a critic trained."""
        return ValuedTokens(*(torch.cat(column) for column in zip(*self.values, strict=True)))
