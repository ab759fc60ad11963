"""What the learner says of a step: numbers and histograms by the names of docs/metrics.md.

Owns the names and how each number is made of a batch, its scores and its steps. Pure.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from async_rl.protocol import FinishReason, Float32Array, Histogram, Int32Array, StepMetrics
from correction.diagnostics import diagnose_weights, policy_gap
from correction.weights import TokenWeights
from learner.batch import TrainingBatch
from learner.update import BatchScores, UpdateOutcome

IMPORTANCE_BINS = 40


def step_metrics(batch: TrainingBatch, scores: BatchScores, outcome: UpdateOutcome) -> StepMetrics:
    """Everything but times, which the loop measures."""
    scalars = {
        **_rewards(batch),
        **_responses(batch),
        **_staleness(batch),
        **_correction(batch, scores),
        **_losses(outcome),
        **_steps(outcome),
        "learner/tokens": float(batch.num_trained_tokens),
    }
    return StepMetrics(scalars=scalars, histograms=_histograms(batch, scores))


def _rewards(batch: TrainingBatch) -> dict[str, float]:
    rewards = np.array([s.reward for s in batch.sequences])
    by_task = {
        f"reward/task/{task}": float(np.mean([s.reward for s in batch.sequences if s.task == task]))
        for task in sorted({s.task for s in batch.sequences if s.task})
    }
    return {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std()), **by_task}


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
    crossed = [np.ptp(s.staleness[-s.response_length :]) > 0 for s in batch.sequences if s.response_length]
    others = {
        "staleness/mixed_share": float(np.mean(crossed)) if crossed else 0.0,
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


def _correction(batch: TrainingBatch, scores: BatchScores) -> dict[str, float]:
    mask = torch.from_numpy(np.concatenate([s.mask for s in batch.sequences]))
    mu = torch.from_numpy(np.concatenate([s.rollout_logprobs for s in batch.sequences]))
    weights = diagnose_weights(_joined(scores.weights), mask)
    gap = policy_gap(mu, torch.cat(scores.proximal_logprobs), mask)
    return {
        "importance/mean": weights.mean,
        "importance/max": weights.max,
        "importance/truncated_share": weights.truncated_share,
        "importance/ess": weights.ess,
        "mu_prox/max_abs": gap.max_abs,
        "mu_prox/k1": gap.k1,
        "mu_prox/k3": gap.k3,
    }


def _joined(weights: Sequence[TokenWeights]) -> TokenWeights:
    return TokenWeights(torch.cat([w.weights for w in weights]), torch.cat([w.truncated for w in weights]))


def _losses(outcome: UpdateOutcome) -> dict[str, float]:
    tokens = outcome.trained_tokens
    return {
        "ppo/ratio_mean": mean(tokens.ratios),
        "ppo/ratio_max": float(tokens.ratios.max()) if len(tokens.ratios) else 0.0,
        "ppo/clip_low_share": mean(tokens.clipped_low),
        "ppo/clip_high_share": mean(tokens.clipped_high),
        "ppo/clip_dual_share": mean(tokens.clipped_dual),
        "entropy": mean(tokens.entropy),
        "reference/kl": mean(tokens.reference_kl),
    }


def _steps(outcome: UpdateOutcome) -> dict[str, float]:
    return {
        "loss": float(np.mean([s.loss for s in outcome.steps])),
        "grad_norm": float(np.mean([s.grad_norm for s in outcome.steps])),
        "lr": outcome.steps[-1].lr,
        "skipped": float(sum(s.skipped for s in outcome.steps)),
    }


def _histograms(batch: TrainingBatch, scores: BatchScores) -> dict[str, Histogram]:
    weights = batch.over_mask(w.weights.numpy() for w in scores.weights)
    return {"staleness": count_integers(batch.trained_staleness), "importance": count_bins(weights, IMPORTANCE_BINS)}


def mean(values: torch.Tensor) -> float:
    """In float64; 0 of nothing."""
    return float(values.double().mean()) if len(values) else 0.0


def count_integers(values: Int32Array) -> Histogram:
    """One bin an integer, from 0 to the largest: bin n is [n, n + 1)."""
    assert values.min(initial=0) >= 0, values.min()
    counts = np.bincount(values, minlength=1)
    return Histogram(edges=[float(n) for n in range(len(counts) + 1)], counts=counts.tolist())


def count_bins(values: Float32Array, bins: int) -> Histogram:
    """Even bins from 0 to the largest value, at least 1; what is not finite is in none."""
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, bins=bins, range=(0.0, max(float(finite.max(initial=0.0)), 1.0)))
    return Histogram(edges=edges.tolist(), counts=counts.tolist())
