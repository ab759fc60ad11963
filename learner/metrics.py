"""What the learner says of a step: numbers and histograms by the names of docs/metrics.md.

Owns the names and how each number is made of a batch, its scores and its steps. Pure.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from async_rl.protocol import FinishReason, Histogram, StepMetrics
from correction.diagnostics import diagnose_weights, policy_gap
from correction.masked import masked_max, masked_mean, masked_share
from correction.weights import TokenWeights
from learner.batch import TrainingBatch
from learner.losses import PolicyLoss
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
    staleness = batch.over_mask(s.staleness for s in batch.sequences)
    if not len(staleness):
        return {"staleness/mean": 0.0, "staleness/p95": 0.0, "staleness/max": 0.0}
    return {
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
    mask = torch.cat([mask for mask, _ in outcome.losses])

    def over(pick: str) -> torch.Tensor:
        return torch.cat([_tokens(loss, pick) for _, loss in outcome.losses])

    return {
        "ppo/ratio_mean": float(masked_mean(over("ratios"), mask)),
        "ppo/ratio_max": float(masked_max(over("ratios"), mask)),
        "ppo/clip_low_share": float(masked_share(over("clipped_low"), mask)),
        "ppo/clip_high_share": float(masked_share(over("clipped_high"), mask)),
        "ppo/clip_dual_share": float(masked_share(over("clipped_dual"), mask)),
        "entropy": float(masked_mean(over("entropy"), mask)),
        "reference/kl": float(masked_mean(over("reference_kl"), mask)),
    }


def _tokens(loss: PolicyLoss, pick: str) -> torch.Tensor:
    return {
        "ratios": loss.surrogate.ratios,
        "clipped_low": loss.surrogate.clipped_low,
        "clipped_high": loss.surrogate.clipped_high,
        "clipped_dual": loss.surrogate.clipped_dual,
        "entropy": loss.entropy,
        "reference_kl": loss.reference_kl,
    }[pick]


def _steps(outcome: UpdateOutcome) -> dict[str, float]:
    return {
        "loss": float(np.mean([s.loss for s in outcome.steps])),
        "grad_norm": float(np.mean([s.grad_norm for s in outcome.steps])),
        "lr": outcome.steps[-1].lr,
        "skipped": float(sum(s.skipped for s in outcome.steps)),
    }


def _histograms(batch: TrainingBatch, scores: BatchScores) -> dict[str, Histogram]:
    staleness = batch.over_mask(s.staleness for s in batch.sequences)
    weights = batch.over_mask(w.weights.numpy() for w in scores.weights)
    return {"staleness": count_integers(staleness), "importance": count_bins(weights, IMPORTANCE_BINS)}


def count_integers(values: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Histogram:
    """One bin an integer from 0 (or the smallest) on: bin n is [n, n + 1)."""
    low = min(0, int(values.min(initial=0)))
    high = int(values.max(initial=0))
    counts = np.bincount(values - low, minlength=high - low + 1)
    return Histogram(edges=[float(n) for n in range(low, high + 2)], counts=counts.tolist())


def count_bins(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], bins: int) -> Histogram:
    """Even bins from 0 to the largest value."""
    counts, edges = np.histogram(values, bins=bins, range=(0.0, max(float(values.max(initial=0.0)), 1.0)))
    return Histogram(edges=edges.tolist(), counts=counts.tolist())
