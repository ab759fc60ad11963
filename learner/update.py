"""One batch becomes one version: score → correction → advantages → loss → optimizer steps.

    batch ─► passes of the scoring plan (π_prox, reference, values) on the weights of the batch's start
          ─► weights π_prox/μ of the tokens, and which tokens and trajectories are rejected
          ─► rewards, with penalties, of what is left ─► advantages
          ─► for each epoch, for each mini-batch: micro-batches ─► value loss ─► critic's step
                                                                └► policy_loss ─► policy's step

Owns this order, and that normalisers are of the whole mini-batch. All ranks of a learner go through it at once: passes
and steps are of a rank's own sequences, and everything between is computed by each of them over the whole batch, so
that no number depends on how many there are. Pure but for the models and the ranks' talk: no clock, no sockets.
Where one step is all that a batch gets, π_prox is π: both come out of the step's own pass, and none goes before it.

Legend: N trajectories, T response positions; S sequences of a micro-batch, T' positions of its longest response.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from async_rl.config.objective import KLEstimator, KLPlacement
from async_rl.config.schema import RunConfig
from async_rl.protocol import Batch, TrajectoryGroup
from async_rl.sizing.flops import ModelFlops
from learner.advantages.inputs import AdvantageInputs
from learner.advantages.table import ADVANTAGES
from learner.arrivals import Arrivals
from learner.batch import TrainingBatch
from learner.critic_step import CriticStep
from learner.kl_controller import KL_CONTROLLERS
from learner.losses.table import SURROGATES
from learner.mesh import Mesh, SingleRank
from learner.micro_batch_plan import MicroBatchPlanner
from learner.mini_batch import MiniBatch
from learner.mini_batch_totals import policy_scales, row_scales, select_tokens
from learner.off_policy import OffPolicy
from learner.outcome import BatchScores, UpdateOutcome
from learner.policy_step import PolicyStep
from learner.rewards import shape_rewards
from learner.roles import Roles
from learner.scoring import Scorer, ScoringPlan
from learner.training_snapshot import TrainingSnapshot
from learner.truncation import Truncation

KL_FILE = "kl.json"
"""The coefficient of the KL, in a checkpoint."""


class Updater:
    """Turns batches into versions."""

    def __init__(self, roles: Roles, config: RunConfig, *, flops: ModelFlops, mesh: Mesh | None = None) -> None:
        """
        Args:
            roles: the models.
            config: the run.
            flops: what micro-batches are balanced by.
            mesh: of the ranks; None: this is the only one.
        """
        self._roles = roles
        self._config = config
        self._mesh = mesh or SingleRank()
        self._planner = MicroBatchPlanner.of(config.learner, flops)
        self._plan = ScoringPlan.of(config)
        self._truncation = Truncation.of(config.generation)
        self._scorer = Scorer(
            roles=roles, temperature=config.generation.temperature, truncation=self._truncation, mesh=self._mesh
        )
        self._off_policy = OffPolicy(config.correction)
        self._arrivals = Arrivals()
        self._kl = KL_CONTROLLERS[config.kl.controller](config.kl)
        assert (roles.reference is not None) == (config.kl.coef > 0), config.kl.coef
        assert (roles.critic is not None) == self._plan.values, config.advantage.estimator

    def score_arrival(self, group: TrajectoryGroup) -> None:
        """Scores a group that came before its batch, while the policy is the one that sampled its newest tokens.

        Every shard scores all of it: they have nothing else to do, and need not tell each other.
        """
        version = group.newest_version
        batch = TrainingBatch.build(Batch.whole(version=version, groups=[group]), mask_above=None)
        alone = replace(self._scorer, mesh=SingleRank())
        self._arrivals.put(group.key, batch, alone.logprobs(batch, self._whole(batch)))

    def score(self, batch: TrainingBatch) -> BatchScores:
        """Everything that is fixed before the first step."""
        models = self._scorer.score(batch, self._plan, self._whole(batch))
        behaviour = None
        if self._config.correction.score_on_arrival:
            behaviour = self._arrivals.take(batch)
            self._arrivals.forget_before(batch.version - self._config.staleness.max)
        corrected = None if models.logprobs is None else self._off_policy.correct(batch, models.logprobs, behaviour)
        mask = batch.mask if corrected is None else corrected.mask
        credited = _credited(batch, mask)
        rewards = shape_rewards(batch, models, credited, self._config, kl_coef=self._kl.coef)
        inputs = AdvantageInputs(
            mask=credited,
            token_rewards=rewards.token_rewards,
            groups=batch.groups,
            values=models.values,
            baseline_rewards=batch.baseline_rewards,
            component_rewards=batch.component_rewards,
            proximal_logprobs=models.logprobs,
            sum_pi_squared=models.sum_pi_squared,
            weights=None if corrected is None else corrected.weights,
            log_rhos=None if corrected is None else corrected.log_ratios,
        )
        advantages = ADVANTAGES[self._config.advantage.estimator].function(inputs, self._config.advantage)
        return BatchScores(models=models, corrected=corrected, mask=mask, rewards=rewards, advantages=advantages)

    def update(self, batch: TrainingBatch, scores: BatchScores) -> UpdateOutcome:
        """All optimizer steps of the batch."""
        outcome = UpdateOutcome(logprobs=torch.zeros(batch.shape), kl_coef=self._kl.coef)
        parts = [self._pack(batch, indices) for indices in batch.mini_batches(self._config.learner.mini_batches)]
        outcome.plans = [part.plan for part in parts]
        trains_policy = batch.version >= self._config.critic.warmup
        for epoch in range(self._config.learner.epochs):
            for part in parts:
                self._step_critic(scores, part, outcome)
                if trains_policy:
                    self._step_policy(batch, scores, part, outcome, is_first=epoch == 0)
        outcome.gather(self._mesh, batch.own_rows)
        if not trains_policy and scores.corrected is None:
            # No step's own pass has said it.
            outcome.logprobs = self._scorer.logprobs(batch, self._whole(batch))
        outcome.corrected = scores.corrected or self._off_policy.correct(batch, outcome.logprobs)
        if self._config.kl.coef > 0 and trains_policy:
            self._kl = self._kl.after(_observed_kl(scores, outcome), len(batch.sequences))
        return outcome

    def flops(self, outcome: UpdateOutcome) -> int:
        """Operations that a batch took of the models; a critic counts as a policy.

        A backward pass takes twice as many as a forward pass. Recomputed activations and padding are no work.
        """
        forward, plan = sum(sum(p.loads) for p in outcome.plans), self._plan
        trained = bool(outcome.steps) + bool(outcome.critic_steps)
        return forward * (plan.policy + plan.reference + plan.values + 3 * self._config.learner.epochs * trained)

    def snapshot(self) -> TrainingSnapshot:
        """What training goes on from, at this moment: `learner/`, `critic/` and the KL's coefficient."""
        models = {"learner": self._roles.policy.snapshot()}
        if self._roles.critic is not None:
            models["critic"] = self._roles.critic.snapshot()
        return TrainingSnapshot(
            models=models,
            files={KL_FILE: json.dumps({"coef": self._kl.coef}).encode()},
            is_speaker=self._mesh.is_speaker,
        )

    def load(self, folder: Path) -> None:
        """Takes back what a snapshot wrote."""
        self._roles.policy.load(folder / "learner")
        if self._roles.critic is not None:
            self._roles.critic.load(folder / "critic")
        self._kl = self._kl.resumed(float(json.loads((folder / KL_FILE).read_text(encoding="utf-8"))["coef"]))

    def _step_policy(
        self, batch: TrainingBatch, scores: BatchScores, part: MiniBatch, outcome: UpdateOutcome, *, is_first: bool
    ) -> None:
        kl = self._config.kl
        loss = PolicyStep(
            batch=batch,
            scores=scores,
            mini_batch=part,
            row_scales=policy_scales(scores.mask, part.indices, self._config),
            selected=self._selected(batch, scores, part, outcome),
            off_policy=self._off_policy,
            config=self._config,
            kl_coef=self._kl.coef if kl.placement is KLPlacement.loss else 0.0,
            outcome=outcome,
            is_first=is_first,
        )
        step = self._roles.policy.step(
            part.packed,
            loss,
            temperature=self._config.generation.temperature,
            truncation=self._truncation,
            reference=self._roles.reference if kl.estimator is KLEstimator.full else None,
        )
        outcome.steps.append(step)
        loss.conclude()

    def _step_critic(self, scores: BatchScores, part: MiniBatch, outcome: UpdateOutcome) -> None:
        if self._roles.critic is None:
            return
        loss = CriticStep(
            scores=scores,
            mini_batch=part,
            row_scales=row_scales(scores.mask, part.indices, "token_mean", 1.0),
            clip=self._config.critic.clip,
            outcome=outcome,
        )
        outcome.critic_steps.append(self._roles.critic.step(part.packed, loss))
        loss.conclude()

    def _selected(
        self, batch: TrainingBatch, scores: BatchScores, part: MiniBatch, outcome: UpdateOutcome
    ) -> Tensor | None:
        """What the surrogate chooses over the whole mini-batch; costs a pass, but for the first step of a batch."""
        if SURROGATES[self._config.loss.surrogate].select is None:
            return None
        start, mu, mask = scores.models.logprobs, batch.rollout_logprobs, scores.mask
        assert start is not None
        now = self._scorer.logprobs(batch, part) if outcome.steps else start
        # Of this step alone, so that a resumed run chooses what the run before it chose.
        seed = hash((self._config.seed, batch.version, len(outcome.steps))) & (2**63 - 1)
        return select_tokens(
            now,
            self._off_policy.proximal(start, mu, batch.staleness, mask, now=now),
            scores.advantages.advantages,
            mask,
            part.indices,
            self._config,
            seed=seed,
        )

    def _whole(self, batch: TrainingBatch) -> MiniBatch:
        return self._pack(batch, range(len(batch.sequences)))

    def _pack(self, batch: TrainingBatch, indices: Sequence[int]) -> MiniBatch:
        return MiniBatch.pack(batch, indices, self._planner)


def _credited(batch: TrainingBatch, mask: Tensor) -> Tensor:
    """[N, T] bool: tokens that advantages are of.

    A token that is too old to train still belongs to its trajectory, whose reward counts among its siblings'; a
    rejected one does not, and neither does a trajectory of which rejection left nothing.
    """
    is_gone = batch.mask.any(1) & ~mask.any(1)
    return batch.sampled & ~(batch.mask & ~mask) & ~is_gone[:, None]


def _observed_kl(scores: BatchScores, outcome: UpdateOutcome) -> float:
    if scores.rewards.kl_mean is not None:
        return scores.rewards.kl_mean
    kl = outcome.trained_tokens.reference_kl
    return float(kl.double().mean()) if len(kl) else 0.0
