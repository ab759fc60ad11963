"""What the learner says of a step: every name is documented, every number is the one meant."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import LearnerConfig
from async_rl.config.objective import AdvantageConfig, CorrectionConfig, Estimator
from async_rl.config.reward import RewardConfig
from async_rl.config.schema import RunConfig
from async_rl.protocol import Batch, FinishReason, StepMetrics
from learner.batch import TrainingBatch
from learner.histograms import count_bins, count_integers
from learner.metrics import step_metrics
from learner.roles import Roles
from learner.update import Updater
from tests.learner.bigram_backend import FLOPS, BigramBackend, BigramCritic
from tests.learner.groups import make_group, make_trajectory

NUMBERED = re.compile(r"^(reward/task|reward/component|rejected/by|staleness/bucket|position/bucket)/[^/]*")


def metrics_of(
    batch: Batch,
    backend: BigramBackend | None = None,
    *,
    mask_above: int | None = None,
    config: RunConfig | None = None,
) -> StepMetrics:
    config = config or RunConfig()
    critic = BigramCritic() if config.advantage.estimator is Estimator.gae else None
    updater = Updater(Roles(policy=backend or BigramBackend(), critic=critic), config, flops=FLOPS)
    built = TrainingBatch.build(batch, mask_above=mask_above)
    scores = updater.score(built)
    return step_metrics(built, scores, updater.update(built, scores), components=config.advantage.reward_components)


def batch_of_four() -> Batch:
    cut = FinishReason.LENGTH
    a = [make_trajectory([1, 2], reward=1.0, versions=[2, 3]), make_trajectory([3], reward=0.0, versions=[3])]
    b = [make_trajectory([4] * 4, reward=0.5, versions=[1] * 4, finish_reason=cut), make_trajectory([5], versions=[3])]
    return Batch.whole(version=3, groups=[make_group(0, [6], a, "sums"), make_group(1, [7], b, "words")])


def test_rewards_lengths_and_finish_reasons() -> None:
    scalars = metrics_of(batch_of_four()).scalars
    expected = {
        "reward/mean": 0.375,
        "reward/std": 0.41457809879442496,
        "reward/task/sums": 0.5,
        "reward/task/words": 0.25,
        "response_length/mean": 2.0,
        "response_length/max": 4.0,
        "finish/stop_share": 0.75,
        "finish/length_share": 0.25,
        "learner/tokens": 8.0,
    }
    assert {name: scalars[name] for name in expected} == pytest.approx(expected)


def test_staleness_is_of_every_trained_token() -> None:
    metrics = metrics_of(batch_of_four())
    assert metrics.scalars["staleness/mean"] == pytest.approx((1 + 0 + 0 + 4 * 2 + 0) / 8)
    assert metrics.scalars["staleness/max"] == 2
    assert metrics.histograms["staleness"].counts == [3, 1, 4]
    assert metrics.histograms["staleness"].edges == [0.0, 1.0, 2.0, 3.0]


def test_the_gap_of_engine_and_learner_is_that_of_their_log_probabilities() -> None:
    metrics = metrics_of(batch_of_four())
    backend = BigramBackend()
    log_p = torch.log_softmax(backend.table.detach(), 1)
    pairs = [(6, 1), (1, 2), (6, 3), (7, 4), (4, 4), (4, 4), (4, 4), (7, 5)]
    gaps = torch.stack([-1.0 - log_p[last, token] for last, token in pairs])
    assert metrics.scalars["mu_prox/max_abs"] == pytest.approx(float(gaps.abs().max()), rel=1e-5)
    assert metrics.scalars["mu_prox/k1"] == pytest.approx(float(gaps.mean()), rel=1e-5)
    apart = (gaps.neg().add(-1).exp() - math.exp(-1)).abs()
    assert metrics.scalars["mu_prox/probability_max"] == pytest.approx(float(apart.max()), rel=1e-4)
    assert metrics.scalars["mu_prox/probability_mean"] == pytest.approx(float(apart.mean()), rel=1e-4)
    assert metrics.scalars["mu_prox/probability_std"] == pytest.approx(float(apart.std()), rel=1e-4)
    assert metrics.scalars["mu_prox/probability_correlation"] == 0, "μ is the same for all"
    weights = (-gaps).exp().clamp(max=2.0)
    assert metrics.scalars["importance/mean"] == pytest.approx(float(weights.mean()), rel=1e-5)
    ess = float(weights.sum().square() / (8 * weights.square().sum()))
    assert metrics.scalars["importance/ess"] == pytest.approx(ess, rel=1e-5)
    assert sum(metrics.histograms["importance"].counts) == 8


def test_how_far_the_steps_went_is_a_mean_over_all_of_them() -> None:
    pairs = [(6, 1), (1, 2), (6, 3), (7, 4), (4, 4), (4, 4), (4, 4), (7, 5)]
    once, twice = BigramBackend(), BigramBackend()
    start = torch.log_softmax(once.table.detach().clone(), 1)
    metrics_of(batch_of_four(), once)
    moved = torch.log_softmax(once.table.detach(), 1)
    scalars = metrics_of(batch_of_four(), twice, config=RunConfig(learner=LearnerConfig(epochs=2))).scalars
    log_ratios = torch.stack([moved[pair] - start[pair] for pair in pairs]).double()
    # The first of two steps starts where the batch does, at a ratio of 1.
    assert scalars["ppo/kl"] == pytest.approx(-float(log_ratios.mean()) / 2, rel=1e-5)
    assert scalars["ppo/ratio_mean"] == pytest.approx((1 + float(log_ratios.exp().mean())) / 2, rel=1e-5)
    assert scalars["ppo/ratio_max"] == pytest.approx(float(log_ratios.exp().max()), rel=1e-5)


def test_tokens_over_the_bound_are_counted() -> None:
    scalars = metrics_of(batch_of_four(), mask_above=1).scalars
    assert (scalars["learner/tokens"], scalars["staleness/masked_tokens"]) == (4, 4)
    assert metrics_of(batch_of_four()).scalars["staleness/masked_tokens"] == 0


def test_nothing_to_train_is_numbers_all_the_same() -> None:
    metrics = metrics_of(batch_of_four(), mask_above=-1)
    assert metrics.scalars["learner/tokens"] == 0
    assert metrics.scalars["staleness/masked_tokens"] == 8
    assert all(math.isfinite(value) for value in metrics.scalars.values())
    assert metrics.histograms["staleness"].counts == [0]


def test_a_policy_that_is_not_finite_can_be_reported() -> None:
    backend = BigramBackend()
    with torch.no_grad():
        backend.table[:] = torch.nan
    metrics = metrics_of(batch_of_four(), backend)
    assert metrics.scalars["skipped"] == 1
    assert math.isnan(metrics.scalars["loss"])
    assert sum(metrics.histograms["importance"].counts) == 0


def test_histograms_count_every_value_once() -> None:
    assert count_integers(np.array([0, 2, 2, 5], np.int32)).counts == [1, 0, 2, 0, 0, 1]
    counted = count_bins(np.array([0.0, 0.5, 1.0, 2.0], np.float32), 4)
    assert (counted.edges, counted.counts) == ([0.0, 0.5, 1.0, 1.5, 2.0], [1, 1, 1, 1])


def test_every_metric_is_documented(repository: Path) -> None:
    lines = re.findall(r"^\| (`[^|]+) \|", (repository / "docs/metrics.md").read_text(), re.MULTILINE)
    documented = {name for line in lines for name in re.findall(r"`([^`]+)`", line)}
    metrics = metrics_of(batch_of_four())
    rejecting = RunConfig(correction=CorrectionConfig(reject=["token_k2:1"], veto=0.1))
    with_critic = RunConfig(advantage=AdvantageConfig(estimator=Estimator.gae))
    names = {
        NUMBERED.sub(r"\1/NAME", name)
        for config in (RunConfig(), rejecting, with_critic)
        for name in metrics_of(batch_of_four(), config=config).scalars
    }
    assert names <= documented, names - documented
    assert set(metrics.histograms) <= documented


def test_component_rewards_and_the_greedy_answers_are_told_by_name() -> None:
    trajectories = [make_trajectory([1], components=[1.0, 0.5]), make_trajectory([2], components=[0.0, 0.25])]
    batch = Batch.whole(version=0, groups=[make_group(0, [6], trajectories, baseline_reward=0.75)])
    config = RunConfig(advantage=AdvantageConfig(reward_components=["correct", "short"]))
    scalars = metrics_of(batch, config=config).scalars
    assert scalars["reward/component/correct"] == 0.5
    assert scalars["reward/component/short"] == 0.375
    assert scalars["reward/greedy"] == 0.75


def test_long_answers_are_counted_with_what_they_lose() -> None:
    config = RunConfig(generation=GenerationConfig(max_new_tokens=4), reward=RewardConfig(overlong_buffer=2))
    scalars = metrics_of(batch_of_four(), config=config).scalars
    # Lengths 2, 1, 4, 1: the longest loses all of it.
    assert scalars["reward/overlong_share"] == 0.25
    assert scalars["reward/overlong_penalty"] == 0.25
    assert scalars["reward/mean"] == 0.375


def test_what_is_rejected_is_told_by_criterion() -> None:
    config = RunConfig(correction=CorrectionConfig(reject=["token_k1:1.5", "seq_mean_k3:1000"]))
    metrics = metrics_of(batch_of_four(), config=config)
    scalars = metrics.scalars
    assert 0 < scalars["rejected/by/token_k1_share"] == scalars["rejected/tokens_share"]
    assert scalars["rejected/by/seq_mean_k3_share"] == 0
    assert scalars["learner/tokens"] == sum(metrics.histograms["importance"].counts)
    assert scalars["learner/tokens"] == pytest.approx(8 * (1 - scalars["rejected/tokens_share"]))


def test_a_critic_that_says_nothing_explains_nothing() -> None:
    config = RunConfig(advantage=AdvantageConfig(estimator=Estimator.gae))
    scalars = metrics_of(batch_of_four(), config=config).scalars
    assert scalars["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert scalars["critic/value_mean"] == 0
    # Rewards 1, 0, 0.5 and 0 on 2, 1, 4 and 1 tokens.
    assert scalars["critic/return_mean"] == pytest.approx((2 * 1 + 4 * 0.5) / 8)
    assert scalars["critic/loss"] == pytest.approx(0.5 * (2 * 1 + 4 * 0.25) / 8)
