"""Updates of a `BigramBackend`, for tests of what becomes of a batch."""

from typing import Any

from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import LearnerConfig
from async_rl.config.objective import (
    AdvantageConfig,
)
from async_rl.config.schema import RunConfig
from async_rl.protocol import Batch
from learner.batch import TrainingBatch
from learner.outcome import BatchScores, UpdateOutcome
from learner.roles import Roles
from learner.scoring import ScoringPlan
from learner.update import Updater
from tests.learner.bigram_backend import FLOPS, BigramBackend, BigramCritic
from tests.learner.groups import random_batch

TEMPERATURE = 0.8
NO_STD = AdvantageConfig(normalize_by_std=False)


def config(**parts: Any) -> RunConfig:
    """With a small micro-batch, so that a batch has several."""
    learner = parts.pop("learner", LearnerConfig(micro_batch_tokens=20))
    return RunConfig(generation=GenerationConfig(temperature=TEMPERATURE), learner=learner, **parts)


def updater_of(backend: BigramBackend, config: RunConfig, reference: BigramBackend | None = None) -> Updater:
    if config.kl.coef > 0 and reference is None:
        reference = BigramBackend(seed=1)
    critic = BigramCritic() if ScoringPlan.of(config).values else None
    return Updater(Roles(policy=backend, reference=reference, critic=critic), config, flops=FLOPS)


def update(
    backend: BigramBackend, batch: TrainingBatch, config: RunConfig, reference: BigramBackend | None = None
) -> tuple[BatchScores, UpdateOutcome]:
    updater = updater_of(backend, config, reference)
    scores = updater.score(batch)
    return scores, updater.update(batch, scores)


def built(batch: Batch, mask_above: int | None = None) -> TrainingBatch:
    return TrainingBatch.build(batch, mask_above=mask_above)


def rich_batch(seed: int = 5) -> TrainingBatch:
    """Four groups with everything that an estimator can ask for."""
    received = random_batch(num_groups=4, group_size=4, seed=seed, num_components=2, with_baseline=True)
    return built(received)
