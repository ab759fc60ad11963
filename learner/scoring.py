"""What the models say of a batch before its first optimizer step, as rows.

Owns which forward passes a configuration needs, so that nobody pays for one that is not read, and the way from
packed micro-batches to rows. Must not know what is made of the numbers.

Legend: N trajectories, T response positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from async_rl.config.objective import KLEstimator, KLPlacement, Proximal
from async_rl.config.schema import RunConfig
from learner.advantages.inputs import Need
from learner.advantages.table import ADVANTAGES
from learner.batch import MiniBatch, TrainingBatch
from learner.losses.table import SURROGATES
from learner.roles import Roles

POLICY_NEEDS = frozenset({Need.SCORES, Need.SUM_PI_SQUARED, Need.LOG_RHOS})
"""What of an estimator's needs comes from a pass of the policy."""


@dataclass(frozen=True, kw_only=True)
class ScoringPlan:
    """Which passes come before the first step."""

    policy: bool
    """The policy's log-probabilities at the batch's start. Without them π_prox is taken in the step's own pass."""
    sum_pi_squared: bool
    reference: bool
    """The reference's log-probabilities; not where the KL is exact, which the step's own pass computes."""
    values: bool

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """The fewest passes that give the numbers that are read."""
        correction, needs = config.correction, ADVANTAGES[config.advantage.estimator].needs
        has_one_step = config.learner.epochs * config.learner.mini_batches == 1
        has_kl = config.kl.coef > 0
        whole_batch_first = (
            bool(correction.reject) or correction.veto > 0 or correction.normalize or correction.score_on_arrival
        )
        return cls(
            policy=(
                bool(needs & POLICY_NEEDS)
                or whole_batch_first
                or (correction.proximal is Proximal.recompute and not has_one_step)
                or (has_kl and config.kl.placement is KLPlacement.reward)
                or SURROGATES[config.loss.surrogate].select is not None
            ),
            sum_pi_squared=Need.SUM_PI_SQUARED in needs,
            reference=has_kl and config.kl.estimator is not KLEstimator.full,
            values=Need.VALUES in needs,
        )


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """[N, T] float32 each; None where the plan has no such pass. No data outside of the responses."""

    logprobs: Tensor | None
    sum_pi_squared: Tensor | None
    reference_logprobs: Tensor | None
    values: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Runs the passes of a plan."""

    roles: Roles
    temperature: float

    def score(self, batch: TrainingBatch, plan: ScoringPlan, part: MiniBatch) -> ModelScores:
        """Every pass of the plan."""
        logprobs, sum_pi_squared = None, None
        if plan.policy:
            logprobs, sum_pi_squared = self._policy(batch, part, with_sum_pi_squared=plan.sum_pi_squared)
        return ModelScores(
            logprobs=logprobs,
            sum_pi_squared=sum_pi_squared if plan.sum_pi_squared else None,
            reference_logprobs=self._reference(batch, part) if plan.reference else None,
            values=self._values(batch, part) if plan.values else None,
        )

    def logprobs(self, batch: TrainingBatch, part: MiniBatch) -> Tensor:
        """[N, T] of the policy as it is now; no data for sequences outside of the part."""
        return self._policy(batch, part, with_sum_pi_squared=False)[0]

    def _policy(self, batch: TrainingBatch, part: MiniBatch, *, with_sum_pi_squared: bool) -> tuple[Tensor, Tensor]:
        said = self.roles.policy.score(
            part.packed, temperature=self.temperature, with_sum_pi_squared=with_sum_pi_squared
        )
        logprobs, sum_pi_squared = torch.zeros(batch.shape), torch.zeros(batch.shape)
        for m, own in zip(part.micro_batches, said, strict=True):
            m.put(logprobs, own.logprobs)
            if own.sum_pi_squared is not None:
                m.put(sum_pi_squared, own.sum_pi_squared)
        return logprobs, sum_pi_squared

    def _reference(self, batch: TrainingBatch, part: MiniBatch) -> Tensor:
        assert self.roles.reference is not None
        said = self.roles.reference.score(part.packed, temperature=self.temperature)
        return _rows(batch, part, [own.logprobs for own in said])

    def _values(self, batch: TrainingBatch, part: MiniBatch) -> Tensor:
        assert self.roles.critic is not None
        return _rows(batch, part, self.roles.critic.values(part.packed))


def _rows(batch: TrainingBatch, part: MiniBatch, said: Sequence[Tensor]) -> Tensor:
    """[N, T] of what a model said of each micro-batch, [M] each."""
    rows = torch.zeros(batch.shape)
    for m, values in zip(part.micro_batches, said, strict=True):
        m.put(rows, values)
    return rows
