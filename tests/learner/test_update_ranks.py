"""Updates on real ranks, data and model parallel, against one rank: the same losses, weights and words."""

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import LearnerConfig, OptimizerConfig
from async_rl.config.model import ModelConfig
from async_rl.config.objective import (
    AdvantageConfig,
    CorrectionConfig,
    Estimator,
    KLConfig,
    KLEstimator,
    LossConfig,
    Surrogate,
)
from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import RunConfig
from async_rl.controller.dealer import Dealer
from async_rl.protocol import Batch
from async_rl.sizing.flops import ModelFlops
from async_rl.sizing.model_json import read_sizes
from learner.batch import TrainingBatch
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground
from learner.metrics import step_metrics
from learner.place import Place
from learner.roles import Roles
from learner.scoring import ScoringPlan
from learner.update import Updater
from tests.learner.conftest import SIZES, MakeReference
from tests.learner.groups import random_groups
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

# Adam divides gradients near zero by eps, which would blow rounding up.
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-3)
BOUND = 5e-6

SMALL = LearnerConfig(micro_batch_tokens=60, optimizer=OPTIMIZER)
OBJECTIVES = {
    "grpo": RunConfig(learner=SMALL, loss=LossConfig(entropy_coef=0.01), generation=GenerationConfig(temperature=0.9)),
    "ppo": RunConfig(
        learner=LearnerConfig(micro_batch_tokens=60, mini_batches=2, epochs=2, share_prefixes=False),
        advantage=AdvantageConfig(estimator=Estimator.gae),
    ),
    "selecting, rejecting, held to a reference": RunConfig(
        learner=LearnerConfig(micro_batch_tokens=60, epochs=2),
        loss=LossConfig(surrogate=Surrogate.clip_cov, cov_share=0.1),
        correction=CorrectionConfig(reject=["seq_mean_k3:2"], normalize=True),
        kl=KLConfig(coef=0.1, estimator=KLEstimator.full),
    ),
}
LAYOUTS = [ParallelConfig(dp=2), ParallelConfig(pp=2, dp=1), ParallelConfig(tp=2, dp=2)]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a rank ends with."""

    losses: list[float]
    norms: list[float]
    scalars: dict[str, float]
    weights: dict[str, Tensor]
    """Empty on ranks that do not speak."""


def train(place: Place, folder: Path, config: RunConfig, parallel: ParallelConfig) -> Trained:
    """Two batches, each rank with its shard as the controller deals it."""
    groups = random_groups(num_groups=4, group_size=4, seed=11, vocabulary=int(str(SIZES["vocab_size"])), max_length=30)
    flops, model = ModelFlops.of(read_sizes(folder)), ModelConfig(path=str(folder))
    with ExitStack() as stack:
        ground = stack.enter_context(Ground(parallel, place, seed=0, num_threads=1))
        mesh = MegatronMesh()
        policy = stack.enter_context(closing(MegatronBackend(ground, model, OPTIMIZER, num_steps=9)))
        reference = critic = None
        if config.kl.coef > 0:
            reference = stack.enter_context(closing(MegatronBackend(ground, model, None, num_steps=0)))
        if ScoringPlan.of(config).values:
            critic = stack.enter_context(closing(MegatronCritic(ground, model, OPTIMIZER, num_steps=9)))
        updater = Updater(Roles(policy=policy, reference=reference, critic=critic), config, flops=flops, mesh=mesh)
        dealer = Dealer(
            num_shards=mesh.num_shards, mini_batches=config.learner.mini_batches, shares_prefixes=True, flops=flops
        )
        steps = []
        for _ in range(2):
            cut = Batch.cut(version=0, groups=groups, shards=dealer.deal(groups), count=mesh.num_shards)
            batch = TrainingBatch.build(cut[mesh.shard], mask_above=None, mesh=mesh)
            scores = updater.score(batch)
            outcome = updater.update(batch, scores)
            steps += [*outcome.steps, *outcome.critic_steps]
        scalars = step_metrics(batch, scores, outcome).scalars
        weights = {name: weight.clone() for name, weight in policy.named_weights()}
        return Trained(
            losses=[step.loss for step in steps],
            norms=[step.grad_norm for step in steps],
            scalars={n: x for n, x in scalars.items() if not n.startswith(("learner/micro", "learner/imbalance"))},
            weights=weights if mesh.is_speaker else {},
        )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_layout_changes_what_is_trained_and_said(
    objective: str, make_reference: MakeReference, tmp_path: Path
) -> None:
    make_reference("Qwen3ForCausalLM", tie_word_embeddings=True)
    folder, config = tmp_path / "model", OBJECTIVES[objective]
    (alone,) = run_ranks(1, train, folder, config, ParallelConfig())
    for parallel in LAYOUTS:
        ranks = run_ranks(parallel.ranks_of_copy * parallel.dp, train, folder, config, parallel)
        for own in ranks:
            assert_same(own, alone)
        assert_same_weights(ranks[0], alone)


def test_sharing_prompts_changes_nothing_that_is_trained_and_said(
    make_reference: MakeReference, tmp_path: Path
) -> None:
    make_reference("Qwen3ForCausalLM", tie_word_embeddings=True)
    shared = OBJECTIVES["grpo"]
    apart = replace(shared, learner=replace(shared.learner, share_prefixes=False))
    (first,), (second,) = (
        run_ranks(1, train, tmp_path / "model", config, ParallelConfig()) for config in (shared, apart)
    )
    assert_same(first, second)
    assert_same_weights(first, second)


def assert_same(own: Trained, alone: Trained) -> None:
    assert own.losses == pytest.approx(alone.losses, abs=BOUND)
    assert own.norms == pytest.approx(alone.norms, rel=1e-4, abs=BOUND)
    assert own.scalars == pytest.approx(alone.scalars, rel=1e-3, abs=2e-5)


def assert_same_weights(own: Trained, alone: Trained) -> None:
    assert own.weights.keys() == alone.weights.keys() and alone.weights
    for name, weight in alone.weights.items():
        torch.testing.assert_close(own.weights[name], weight, rtol=0, atol=BOUND)
