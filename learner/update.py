"""One batch becomes one version: score → advantages → correction → loss → optimizer steps.

    batch ─► score π_prox (and the reference) on the weights of the batch's start
          ─► advantages of the trajectories, weights π_prox/μ of the tokens
          ─► for each epoch, for each mini-batch: micro-batches ─► policy_loss ─► one optimizer step

Owns this order, and that normalisers are of the whole mini-batch. Pure but for the backend: no clock, no sockets.
With one epoch and one mini-batch π is π_prox, and the ratio 1, by construction: the path is the same.

Legend: L tokens of a sequence, T tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from async_rl.config.schema import CorrectionConfig, LearnerConfig, ObjectiveConfig
from correction.ratios import log_ratio
from correction.weights import WEIGHTINGS, TokenWeights
from learner.advantages import ADVANTAGES
from learner.backend import StepResult, TokenScores, TrainBackend
from learner.batch import MicroBatch, TrainingBatch, pack_micro_batches
from learner.losses import AGGREGATIONS, PolicyLoss, PolicyTokens, policy_loss


@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """What is known of a batch before its first optimizer step; one tensor [L] a sequence, or one for all [N]."""

    proximal_logprobs: list[Tensor]
    reference_logprobs: list[Tensor] | None
    advantages: Tensor
    """[N]"""
    weights: list[TokenWeights]


class TrainedTokens(NamedTuple):
    """What the loss said of the tokens that train, on the CPU; [n] each."""

    ratios: Tensor
    """π/π_prox."""
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor
    entropy: Tensor
    reference_kl: Tensor

    @classmethod
    def of(cls, mask: Tensor, loss: PolicyLoss) -> Self:
        """Picks them by the mask [T] bool."""
        said = loss.surrogate
        columns = (
            said.ratios, said.clipped_low, said.clipped_high, said.clipped_dual, loss.entropy, loss.reference_kl
        )  # fmt: skip
        return cls(*(column.cpu()[mask] for column in columns))


@dataclass
class UpdateOutcome:
    """What the optimizer steps of a batch did and said."""

    steps: list[StepResult] = field(default_factory=list)
    losses: list[TrainedTokens] = field(default_factory=list)
    """One a micro-batch, of all steps."""

    @property
    def trained_tokens(self) -> TrainedTokens:
        """Of all micro-batches together."""
        return TrainedTokens(*(torch.cat(column) for column in zip(*self.losses, strict=True)))


class Updater:
    """Turns batches into versions."""

    def __init__(
        self,
        backend: TrainBackend,
        reference: TrainBackend | None,
        *,
        learner: LearnerConfig,
        objective: ObjectiveConfig,
        correction: CorrectionConfig,
        temperature: float,
    ) -> None:
        self._backend = backend
        self._reference = reference
        self._learner = learner
        self._objective = objective
        self._correction = correction
        self._temperature = temperature

    def score(self, batch: TrainingBatch) -> BatchScores:
        """Everything that is fixed before the first step."""
        micro_batches = self._pack(batch, range(len(batch.sequences)))
        proximal = self._score_all(self._backend, batch, micro_batches)
        reference = self._score_all(self._reference, batch, micro_batches) if self._reference else None
        advantages = ADVANTAGES[self._objective.advantage](
            batch.rewards,
            batch.groups,
            batch.counted,
            self._objective.normalize_by_std,
        )
        return BatchScores(
            proximal_logprobs=proximal,
            reference_logprobs=reference,
            advantages=advantages,
            weights=self._weights(batch, proximal),
        )

    def _weights(self, batch: TrainingBatch, proximal: Sequence[Tensor]) -> list[TokenWeights]:
        weighting = WEIGHTINGS[self._correction.weighting]
        weights = []
        for sequence, logprobs in zip(batch.sequences, proximal, strict=True):
            mask = torch.from_numpy(sequence.mask)
            log_ratios = log_ratio(logprobs, torch.from_numpy(sequence.rollout_logprobs), mask)
            weights.append(weighting(log_ratios, mask, self._correction.cap))
        return weights

    def update(self, batch: TrainingBatch, scores: BatchScores) -> UpdateOutcome:
        """All optimizer steps of the batch."""
        outcome = UpdateOutcome()
        for _ in range(self._learner.epochs):
            for indices in batch.mini_batches(self._learner.mini_batches):
                self._step(batch, scores, indices, outcome)
        return outcome

    def _step(self, batch: TrainingBatch, scores: BatchScores, indices: Sequence[int], outcome: UpdateOutcome) -> None:
        micro_batches = self._pack(batch, indices)
        tokens = self._policy_tokens(batch, scores, micro_batches)
        said: dict[int, PolicyLoss] = {}

        def loss(token_scores: TokenScores, index: int) -> Tensor:
            own = tokens[index].to(token_scores.logprobs.device)
            result = policy_loss(token_scores.logprobs, token_scores.entropy, own, self._objective)
            said[index] = result.detach()
            return result.loss

        packed = [m.packed for m in micro_batches]
        outcome.steps.append(self._backend.step(packed, loss, temperature=self._temperature))
        outcome.losses += [TrainedTokens.of(tokens[i].mask, said[i]) for i in sorted(said)]

    def _policy_tokens(
        self, batch: TrainingBatch, scores: BatchScores, micro_batches: Sequence[MicroBatch]
    ) -> list[PolicyTokens]:
        masks = [m.pack([s.mask for s in batch.sequences], torch.bool) for m in micro_batches]
        owners = [
            torch.repeat_interleave(torch.tensor(m.indices), torch.tensor(m.packed.lengths)) for m in micro_batches
        ]
        coefficients = AGGREGATIONS["token_mean"](torch.cat(masks), torch.cat(owners))
        by_micro_batch = torch.split(coefficients, [len(mask) for mask in masks])
        return [
            PolicyTokens(
                mask=mask,
                coefficients=share,
                advantages=scores.advantages[owner],
                weights=m.pack([w.weights for w in scores.weights], torch.float32),
                proximal_logprobs=m.pack(scores.proximal_logprobs, torch.float32),
                reference_logprobs=(
                    m.pack(scores.reference_logprobs, torch.float32) if scores.reference_logprobs else None
                ),
            )
            for m, mask, owner, share in zip(micro_batches, masks, owners, by_micro_batch, strict=True)
        ]

    def _score_all(
        self, backend: TrainBackend, batch: TrainingBatch, micro_batches: Sequence[MicroBatch]
    ) -> list[Tensor]:
        logprobs: list[Tensor] = [torch.empty(0)] * len(batch.sequences)
        for m in micro_batches:
            scored = backend.score(m.packed, temperature=self._temperature).logprobs
            for index, values in zip(m.indices, m.packed.unpack(scored), strict=True):
                logprobs[index] = values
        return logprobs

    def _pack(self, batch: TrainingBatch, indices: Sequence[int]) -> list[MicroBatch]:
        return pack_micro_batches(batch, indices, self._learner.micro_batch_tokens)
