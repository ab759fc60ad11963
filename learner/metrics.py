"""What the learner says of a step: numbers and histograms by the names of docs/metrics.md.

Owns the names, but for those of the correction, and how each number is made of a batch, its scores and its steps. Pure.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from async_rl.protocol import FinishReason, StepMetrics
from correction.masked import masked_mean
from learner.batch import TrainingBatch
from learner.correction_metrics import (
    bucket_metrics,
    correction_histograms,
    correction_metrics,
    probability_metrics,
)
from learner.histograms import count_integers
from learner.micro_batch_plan import MicroBatchPlan
from learner.outcome import BatchScores, UpdateOutcome


def step_metrics(
    batch: TrainingBatch, scores: BatchScores, outcome: UpdateOutcome, *, components: Sequence[str] = ()
) -> StepMetrics:
    """Everything but times, which the loop measures.

    Args:
        batch: what was trained on.
        scores: what was known before the first step.
        outcome: what the steps said.
        components: names of the batch's component rewards.
    """
    assert outcome.corrected is not None
    start = outcome.logprobs if scores.models.logprobs is None else scores.models.logprobs
    scalars = {
        **_rewards(batch, scores, components),
        **_responses(batch),
        **_staleness(batch),
        **correction_metrics(outcome.corrected),
        **probability_metrics(start, batch.rollout_logprobs, batch.mask),
        **bucket_metrics(outcome.corrected, batch.staleness),
        **_advantages(scores),
        # Not while the critic alone trains.
        **({**_losses(outcome), **_policy_steps(outcome)} if outcome.steps else {}),
        "skipped": float(sum(s.skipped for s in (*outcome.steps, *outcome.critic_steps))),
        **_plans(outcome.plans),
        **(_critic(scores, outcome) if outcome.critic_steps else {}),
        "learner/tokens": float(scores.mask.sum()),
    }
    histograms = {"staleness": count_integers(batch.trained_staleness), **correction_histograms(outcome.corrected)}
    return StepMetrics(scalars=scalars, histograms=histograms)


def _rewards(batch: TrainingBatch, scores: BatchScores, components: Sequence[str]) -> dict[str, float]:
    rewards = np.array([s.reward for s in batch.sequences])
    by_task = {
        f"reward/task/{task}": float(np.mean([s.reward for s in batch.sequences if s.task == task]))
        for task in sorted({s.task for s in batch.sequences if s.task})
    }
    by_component = {
        f"reward/component/{name}": mean(column)
        for name, column in zip(components, batch.component_rewards.T, strict=True)
    }
    overlong, baseline = scores.rewards.overlong, batch.baseline_rewards
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        **by_task,
        **by_component,
        **({} if baseline is None else {"reward/greedy": mean(baseline)}),
        "reward/overlong_penalty": mean(overlong),
        "reward/overlong_share": mean(overlong > 0),
    }


def _responses(batch: TrainingBatch) -> dict[str, float]:
    lengths = [s.response_length for s in batch.sequences]
    reasons = Counter(s.finish_reason for s in batch.sequences)
    return {
        "response_length/mean": float(np.mean(lengths)),
        "response_length/max": float(max(lengths)),
        **{f"finish/{reason}_share": reasons[reason] / len(lengths) for reason in FinishReason},
    }


def _staleness(batch: TrainingBatch) -> dict[str, float]:
    staleness = batch.trained_staleness
    versions = [row[:n] for row, n in zip(batch.staleness, batch.response_lengths.tolist(), strict=True) if n]
    others = {
        "staleness/mixed_share": float(np.mean([bool((v != v[0]).any()) for v in versions])) if versions else 0.0,
        "staleness/masked_tokens": float(batch.num_masked_tokens),
    }
    if not len(staleness):
        return {"staleness/mean": 0.0, "staleness/p95": 0.0, "staleness/max": 0.0, **others}
    return {
        **others,
        "staleness/mean": float(staleness.mean()),
        "staleness/p95": float(np.percentile(staleness, 95)),
        "staleness/max": float(staleness.max()),
    }


def _advantages(scores: BatchScores) -> dict[str, float]:
    advantages = scores.advantages.advantages[scores.mask]
    is_moved = scores.advantages.advantages.ne(0).logical_and(scores.mask).any(1)
    return {
        "advantage/mean": mean(advantages),
        "advantage/abs_mean": mean(advantages.abs()),
        "advantage/max": float(advantages.max()) if len(advantages) else 0.0,
        "advantage/min": float(advantages.min()) if len(advantages) else 0.0,
        "advantage/zero_share": 1.0 - mean(is_moved),
    }


def _losses(outcome: UpdateOutcome) -> dict[str, float]:
    tokens = outcome.trained_tokens
    return {
        "ppo/ratio_mean": mean(tokens.ratios),
        "ppo/ratio_max": float(tokens.ratios.max()) if len(tokens.ratios) else 0.0,
        "ppo/kl": -float(tokens.log_ratio_sums.double().sum()) / max(len(tokens.ratios), 1),
        "ppo/clip_low_share": mean(tokens.clipped_low),
        "ppo/clip_high_share": mean(tokens.clipped_high),
        "ppo/clip_dual_share": mean(tokens.clipped_dual),
        "entropy": mean(tokens.entropy),
        "reference/kl": mean(tokens.reference_kl),
        "reference/kl_coef": outcome.kl_coef,
    }


def _policy_steps(outcome: UpdateOutcome) -> dict[str, float]:
    return {
        "loss": float(np.mean([s.loss for s in outcome.steps])),
        "grad_norm": float(np.mean([s.grad_norm for s in outcome.steps])),
        "lr": outcome.steps[-1].lr,
    }


def _plans(plans: Sequence[MicroBatchPlan]) -> dict[str, float]:
    slowest, even = sum(max(p.loads) for p in plans), sum(float(np.mean(p.loads)) for p in plans)
    return {
        "learner/micro_batches": float(sum(len(p.costs[0]) for p in plans)),
        "learner/imbalance/shards": slowest / even,
        "learner/imbalance/micro_batches": float(np.mean([p.imbalance for p in plans])),
    }


def _critic(scores: BatchScores, outcome: UpdateOutcome) -> dict[str, float]:
    values, returns = scores.models.values, scores.advantages.returns
    assert values is not None and returns is not None
    left = _variance(returns - values, scores.mask)
    whole = _variance(returns, scores.mask)
    steps = outcome.critic_steps
    return {
        "critic/loss": float(np.mean([s.loss for s in steps])),
        "critic/grad_norm": float(np.mean([s.grad_norm for s in steps])),
        "critic/lr": steps[-1].lr,
        "critic/value_mean": float(masked_mean(values.double(), scores.mask)),
        "critic/return_mean": float(masked_mean(returns.double(), scores.mask)),
        "critic/clip_share": mean(outcome.valued_tokens.clipped),
        "critic/explained_variance": 1.0 - left / whole if whole > 0 else 0.0,
    }


def _variance(values: Tensor, mask: Tensor) -> float:
    values = values.double()
    return float(masked_mean((values - masked_mean(values, mask)).square(), mask))


def mean(values: torch.Tensor) -> float:
    """In float64; 0 of nothing."""
    return float(values.double().mean()) if values.numel() else 0.0
