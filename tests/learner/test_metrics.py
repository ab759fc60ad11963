"""What the learner says of a step: every name is documented, every number is the one meant."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from async_rl.config.schema import CorrectionConfig, LearnerConfig, ObjectiveConfig
from async_rl.protocol import Batch, FinishReason, StepMetrics
from learner.batch import TrainingBatch
from learner.metrics import count_bins, count_integers, step_metrics
from learner.update import Updater
from tests.learner.bigram_backend import BigramBackend
from tests.learner.groups import make_group, make_trajectory


def metrics_of(batch: Batch, backend: BigramBackend | None = None, *, mask_above: int | None = None) -> StepMetrics:
    updater = Updater(
        backend or BigramBackend(),
        None,
        learner=LearnerConfig(),
        objective=ObjectiveConfig(),
        correction=CorrectionConfig(),
        temperature=1.0,
    )
    built = TrainingBatch.build(batch, mask_above=mask_above)
    scores = updater.score(built)
    return step_metrics(built, scores, updater.update(built, scores))


def batch_of_four() -> Batch:
    cut = FinishReason.LENGTH
    a = [make_trajectory([1, 2], reward=1.0, versions=[2, 3]), make_trajectory([3], reward=0.0, versions=[3])]
    b = [make_trajectory([4] * 4, reward=0.5, versions=[1] * 4, finish_reason=cut), make_trajectory([5], versions=[3])]
    return Batch(version=3, groups=[make_group(0, [6], a, "sums"), make_group(1, [7], b, "words")])


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
    weights = (-gaps).exp().clamp(max=2.0)
    assert metrics.scalars["importance/mean"] == pytest.approx(float(weights.mean()), rel=1e-5)
    ess = float(weights.sum().square() / (8 * weights.square().sum()))
    assert metrics.scalars["importance/ess"] == pytest.approx(ess, rel=1e-5)
    assert sum(metrics.histograms["importance"].counts) == 8


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
    documented = set(re.findall(r"^\| `([^`]+)`", (repository / "docs/metrics.md").read_text(), re.MULTILINE))
    metrics = metrics_of(batch_of_four())
    names = {re.sub(r"^reward/task/.*", "reward/task/TASK", name) for name in metrics.scalars}
    assert names <= documented
    assert set(metrics.histograms) <= documented
