"""What the models say of a batch before its first optimizer step, as rows.

Owns which forward passes a configuration needs, so that nobody pays for one that is not read, and the way from each
shard's packed micro-batches to the rows of all. Must not know what is made of the numbers.

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
from learner.batch import TrainingBatch
from learner.losses.table import SURROGATES
from learner.mesh import Mesh
from learner.mini_batch import MiniBatch
from learner.roles import Roles
from learner.truncation import Truncation

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
    """Runs the passes of a plan; all ranks at once, and each of them gets the rows of all."""

    roles: Roles
    temperature: float
    truncation: Truncation | None
    mesh: Mesh

    def score(self, batch: TrainingBatch, plan: ScoringPlan, part: MiniBatch) -> ModelScores:
        """Every pass of the plan."""
        logprobs, sum_pi_squared = None, None
        if plan.policy:
            logprobs, sum_pi_squared = self._policy(batch, part, with_sum_pi_squared=plan.sum_pi_squared)
        return ModelScores(
            logprobs=logprobs,
            sum_pi_squared=sum_pi_squared,
            reference_logprobs=self._reference(batch, part) if plan.reference else None,
            values=self._values(batch, part) if plan.values else None,
        )

    def logprobs(self, batch: TrainingBatch, part: MiniBatch) -> Tensor:
        """[N, T] of the policy as it is now; no data for sequences outside of the part."""
        return self._policy(batch, part, with_sum_pi_squared=False)[0]

    def _policy(
        self, batch: TrainingBatch, part: MiniBatch, *, with_sum_pi_squared: bool
    ) -> tuple[Tensor, Tensor | None]:
        said = self.roles.policy.score(
            part.packed,
            temperature=self.temperature,
            truncation=self.truncation,
            with_sum_pi_squared=with_sum_pi_squared,
        )
        logprobs = self._rows(batch, part, [own.logprobs for own in said])
        if not with_sum_pi_squared:
            return logprobs, None
        squares = [own.sum_pi_squared for own in said if own.sum_pi_squared is not None]
        return logprobs, self._rows(batch, part, squares)

    def _reference(self, batch: TrainingBatch, part: MiniBatch) -> Tensor:
        assert self.roles.reference is not None
        said = self.roles.reference.score(part.packed, temperature=self.temperature, truncation=self.truncation)
        return self._rows(batch, part, [own.logprobs for own in said])

    def _values(self, batch: TrainingBatch, part: MiniBatch) -> Tensor:
        assert self.roles.critic is not None
        return self._rows(batch, part, self.roles.critic.values(part.packed))

    def _rows(self, batch: TrainingBatch, part: MiniBatch, said: Sequence[Tensor]) -> Tensor:
        """[N, T] of what a model said of each of this rank's micro-batches, [M] each, and of the others'."""
        rows = torch.zeros(batch.shape)
        for m, values in zip(part.micro_batches, said, strict=True):
            m.put(rows, values)
        return self.mesh.merge(rows)
