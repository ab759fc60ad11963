"""What the learner says of a batch's correction, by the names of docs/metrics.md.

Owns the names. What the numbers are is the correction's business.
"""

import torch
from torch import Tensor

from async_rl.protocol import Histogram
from correction.buckets import POSITION_EDGES, STALENESS_EDGES, by_bucket
from correction.correction import Corrected
from correction.decomposition import DecompositionReport
from correction.probability_gap import probability_gap
from learner.histograms import count_bins

IMPORTANCE_BINS = 40


def correction_metrics(corrected: Corrected) -> dict[str, float]:
    """Of the whole batch."""
    said = corrected.diagnostics
    gap, weights = said.gap, said.weights
    return {
        "importance/mean": weights.tokens.mean,
        "importance/max": weights.tokens.max,
        "importance/truncated_share": weights.truncated_share,
        "importance/masked_share": weights.masked_share,
        "importance/normalizer": weights.normalizer,
        "importance/ess": weights.ess_token,
        "importance/ess_sequence": weights.ess_sequence,
        "rejected/tokens_share": said.rejected.token_share,
        "rejected/sequences_share": said.rejected.sequence_share,
        **{f"rejected/by/{c.name}_share": c.rejected.token_share for c in said.criteria},
        **({"rejected/by/veto_share": said.vetoed.token_share} if corrected.correction.veto > 0 else {}),
        "mu_prox/max_abs": gap.max_abs,
        "mu_prox/k1": gap.k1,
        "mu_prox/k3": gap.k3,
        "mu_prox/chi2": gap.chi2_token,
        "mu_prox/chi2_sequence": gap.chi2_sequence,
        "mu_prox/ess": gap.ess_token,
        "mu_prox/ess_sequence": gap.ess_sequence,
        "mu_prox/log_perplexity_gap": gap.log_perplexity_gap.mean,
        "mu_prox/log_perplexity_gap_max": gap.log_perplexity_gap.max,
        **({} if said.decomposition is None else _decomposition(said.decomposition)),
    }


def probability_metrics(logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> dict[str, float]:
    """How far probabilities, not their logarithms, are apart: a broken pairing of engine and learner shows at a glance.

    Args:
        logprobs: [N, T] of the policy at the batch's start.
        rollout_logprobs: [N, T] log μ.
        mask: [N, T] bool.
    """
    gap = probability_gap(logprobs, rollout_logprobs, mask)
    return {
        "mu_prox/probability_max": gap.max,
        "mu_prox/probability_mean": gap.mean,
        "mu_prox/probability_std": gap.std,
        "mu_prox/probability_correlation": gap.correlation,
    }


def bucket_metrics(corrected: Corrected, staleness: Tensor) -> dict[str, float]:
    """The same by age and by place, for the buckets that hold any token.

    Args:
        corrected: a batch [N, T].
        staleness: [N, T] versions.
    """
    positions = torch.arange(staleness.shape[1])
    by = {
        "staleness": by_bucket(corrected, staleness, STALENESS_EDGES),
        "position": by_bucket(corrected, positions, POSITION_EDGES),
    }
    return {
        f"{key}/bucket/{bucket.label}/{name}": value
        for key, buckets in by.items()
        for bucket in buckets
        if bucket.token_share > 0
        for name, value in (
            ("tokens_share", bucket.token_share),
            ("mu_prox_k1", bucket.k1),
            ("mu_prox_k3", bucket.k3),
            ("importance_mean", bucket.weight),
            ("importance_ess", bucket.ess),
            ("bounded_share", bucket.bounded_share),
            ("rejected_share", bucket.rejected_share),
        )
    }


def _decomposition(report: DecompositionReport) -> dict[str, float]:
    return {
        "decomposition/scored_share": report.scored_share,
        "decomposition/staleness_k1": report.staleness.k1,
        "decomposition/staleness_k3": report.staleness.k3,
        "decomposition/staleness_max_abs": report.staleness.max_abs,
        "decomposition/staleness_capped_share": report.staleness_bounded_share,
        "decomposition/mismatch_k1": report.mismatch.k1,
        "decomposition/mismatch_k3": report.mismatch.k3,
        "decomposition/mismatch_max_abs": report.mismatch.max_abs,
        "decomposition/mismatch_capped_share": report.mismatch_bounded_share,
    }


def correction_histograms(corrected: Corrected) -> dict[str, Histogram]:
    """Of the weights that the loss used, over the tokens that trained."""
    return {"importance": count_bins(corrected.weights[corrected.mask].numpy(), IMPORTANCE_BINS)}
