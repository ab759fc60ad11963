"""No split of a batch, into micro-batches or over ranks, changes what a batch does and says."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from async_rl.config.learner import LearnerConfig
from async_rl.config.objective import (
    AdvantageConfig,
    Aggregation,
    CorrectionConfig,
    Estimator,
    KLConfig,
    KLController,
    KLEstimator,
    KLPlacement,
    LossConfig,
    Proximal,
    RatioLevel,
    Surrogate,
    Weighting,
)
from async_rl.config.schema import RunConfig
from async_rl.controller.dealer import Dealer
from async_rl.protocol import Batch, TrajectoryGroup
from learner.batch import TrainingBatch
from learner.mesh import Mesh
from learner.metrics import step_metrics
from learner.roles import Roles
from learner.scoring import ScoringPlan
from learner.update import Updater
from tests.learner.bigram_backend import FLOPS, BigramBackend, BigramCritic
from tests.learner.groups import make_group, make_trajectory, random_groups
from tests.learner.threads import run_threads
from tests.learner.updates import config, rich_batch, update


@pytest.mark.parametrize("surrogate", Surrogate)
@pytest.mark.parametrize("aggregation", [Aggregation.auto, Aggregation.seq_mean_token_sum_norm])
def test_no_split_into_micro_batches_changes_the_step(surrogate: Surrogate, aggregation: Aggregation) -> None:
    steps = []
    for max_tokens in (10_000, 40, 13, 1):
        backend = BigramBackend(lr=2.0)
        learner = LearnerConfig(micro_batch_tokens=max_tokens, mini_batches=2, epochs=2)
        loss = LossConfig(surrogate=surrogate, aggregation=aggregation, cov_share=0.1)
        kl = KLConfig(coef=0.1, straight_through=True)
        _, outcome = update(backend, rich_batch(), config(learner=learner, loss=loss, kl=kl))
        steps.append(([s.loss for s in outcome.steps], backend.table.detach()))
    for losses, table in steps[1:]:
        assert losses == pytest.approx(steps[0][0], abs=1e-6)
        torch.testing.assert_close(table, steps[0][1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("correction", [
    CorrectionConfig(normalize=True),
    CorrectionConfig(reject=["seq_mean_k3:0.3", "token_k1:0.2_4.0"], veto=1e-3),
    CorrectionConfig(proximal=Proximal.rollout, weighting=Weighting.off),
    CorrectionConfig(proximal=Proximal.log_linear, weighting=Weighting.masked, floor=0.5),
    CorrectionConfig(level=RatioLevel.sequence, weighting=Weighting.masked, floor=0.1, cap=5.0),
    CorrectionConfig(level=RatioLevel.segment),
    CorrectionConfig(level=RatioLevel.geometric),
])  # fmt: skip
def test_no_split_changes_a_correction(correction: CorrectionConfig) -> None:
    gradients = []
    for max_tokens in (10_000, 13):
        backend = BigramBackend()
        learner = LearnerConfig(micro_batch_tokens=max_tokens)
        update(backend, rich_batch(), config(learner=learner, correction=correction))
        gradients.append(backend.gradient)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)


OBJECTIVES = {
    "grpo": config(),
    "prompts not shared": config(learner=LearnerConfig(micro_batch_tokens=20, share_prefixes=False)),
    "mini-batches and epochs": config(
        learner=LearnerConfig(micro_batch_tokens=20, mini_batches=2, epochs=2), loss=LossConfig(entropy_coef=0.05)
    ),
    "gae with a critic": config(
        advantage=AdvantageConfig(estimator=Estimator.gae), learner=LearnerConfig(micro_batch_tokens=20, epochs=2)
    ),
    "whitened": config(advantage=AdvantageConfig(estimator=Estimator.reinforce_plus_plus)),
    "optimal baseline": config(advantage=AdvantageConfig(estimator=Estimator.optimal_token_baseline)),
    "chosen by covariance": config(
        loss=LossConfig(surrogate=Surrogate.clip_cov, cov_share=0.1), learner=LearnerConfig(epochs=2)
    ),
    "a loss of sequences": config(loss=LossConfig(surrogate=Surrogate.gspo), learner=LearnerConfig(epochs=2)),
    "rejecting": config(correction=CorrectionConfig(reject=["seq_mean_k3:0.3", "token_k1:0.2_4.0"], normalize=True)),
    "an adaptive KL": config(kl=KLConfig(coef=0.1, controller=KLController.adaptive, target=0.01, horizon=100)),
    "an exact KL": config(kl=KLConfig(coef=0.1, estimator=KLEstimator.full)),
    "a KL in the reward": config(kl=KLConfig(coef=0.1, placement=KLPlacement.reward)),
}


class Trained(NamedTuple):
    """What a rank ends with after two batches."""

    table: Tensor
    losses: list[float]
    norms: list[float]
    scalars: dict[str, float]


def train(groups: list[TrajectoryGroup], config: RunConfig, mesh: Mesh) -> Trained:
    """One rank's way, with its shard of each batch as the controller deals it."""
    policy = BigramBackend(mesh=mesh)
    critic = BigramCritic(mesh=mesh) if ScoringPlan.of(config).values else None
    reference = BigramBackend(seed=1, mesh=mesh) if config.kl.coef > 0 else None
    roles = Roles(policy=policy, reference=reference, critic=critic)
    updater = Updater(roles, config, flops=FLOPS, mesh=mesh)
    dealer = Dealer(num_shards=mesh.num_shards, mini_batches=2, shares_prefixes=True, flops=FLOPS)
    losses, norms = [], []
    for _ in range(2):
        shards = Batch.cut(version=0, groups=groups, shards=dealer.deal(groups), count=mesh.num_shards)
        batch = TrainingBatch.build(shards[mesh.shard], mask_above=None, mesh=mesh)
        scores = updater.score(batch)
        outcome = updater.update(batch, scores)
        losses += [step.loss for step in (*outcome.steps, *outcome.critic_steps)]
        norms += [step.grad_norm for step in (*outcome.steps, *outcome.critic_steps)]
    metrics = step_metrics(batch, scores, outcome)
    of_plans = ("learner/micro_batches", "learner/imbalance")
    scalars = {name: value for name, value in metrics.scalars.items() if not name.startswith(of_plans)}
    return Trained(policy.table.detach(), losses, norms, scalars)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_no_number_of_ranks_changes_what_is_trained_and_said(num_ranks: int, objective: str) -> None:
    groups = random_groups(num_groups=4, group_size=4, seed=5, with_baseline=True)
    (alone,) = run_threads(1, lambda mesh: train(groups, OBJECTIVES[objective], mesh))
    ranks = run_threads(num_ranks, lambda mesh: train(groups, OBJECTIVES[objective], mesh))
    for own in ranks:
        torch.testing.assert_close(own.table, alone.table, rtol=0, atol=5e-6)
        assert own.losses == pytest.approx(alone.losses, abs=1e-6) and own.norms == pytest.approx(alone.norms, abs=5e-6)
        assert own.scalars == pytest.approx(alone.scalars, rel=1e-4, abs=1e-5)
        assert own.scalars == ranks[0].scalars, "all ranks say the same, to the bit"
        assert torch.equal(own.table, ranks[0].table)


def test_more_ranks_than_trajectories_train_the_same() -> None:
    groups = [make_group(0, [6], [make_trajectory([1, 2], reward=1.0), make_trajectory([3])])]
    plain = config(learner=LearnerConfig(groups_per_step=1))
    (alone,) = run_threads(1, lambda mesh: train_one(groups, plain, mesh))
    for own in run_threads(4, lambda mesh: train_one(groups, plain, mesh)):
        torch.testing.assert_close(own, alone, rtol=0, atol=1e-6)


def train_one(groups: list[TrajectoryGroup], config: RunConfig, mesh: Mesh) -> Tensor:
    policy = BigramBackend(mesh=mesh)
    shards = Dealer(num_shards=mesh.num_shards, mini_batches=1, shares_prefixes=True, flops=FLOPS).deal(groups)
    cut = Batch.cut(version=0, groups=groups, shards=shards, count=mesh.num_shards)
    batch = TrainingBatch.build(cut[mesh.shard], mask_above=None, mesh=mesh)
    updater = Updater(Roles(policy=policy), config, flops=FLOPS, mesh=mesh)
    updater.update(batch, updater.score(batch))
    return policy.table.detach()


def test_ranks_that_score_arrivals_know_the_same_of_their_batch() -> None:
    crossed = [make_trajectory([1, 2, 3], versions=[3, 4, 4], reward=1.0), make_trajectory([4], versions=[4])]
    group = make_group(0, [8], crossed)

    def score(mesh: Mesh) -> Tensor:
        scoring = config(correction=CorrectionConfig(score_on_arrival=True))
        updater = Updater(Roles(policy=BigramBackend(mesh=mesh)), scoring, flops=FLOPS, mesh=mesh)
        updater.score_arrival(group)
        shards = [[i % mesh.num_shards for i in range(2)]]
        cut = Batch.cut(version=5, groups=[group], shards=shards, count=mesh.num_shards)
        corrected = updater.score(TrainingBatch.build(cut[mesh.shard], mask_above=None, mesh=mesh)).corrected
        assert corrected is not None and corrected.diagnostics.decomposition is not None
        assert corrected.diagnostics.decomposition.scored_share == 3 / 4
        return corrected.weights

    (alone,) = run_threads(1, score)
    for own in run_threads(2, score):
        torch.testing.assert_close(own, alone)
