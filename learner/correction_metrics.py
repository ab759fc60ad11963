"""What the learner says of a batch's correction, by the names of docs/metrics.md.

Owns the names. What the numbers are is the correction's business.
"""

from async_rl.protocol import Histogram
from correction.correction import Corrected
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
    }


def correction_histograms(corrected: Corrected) -> dict[str, Histogram]:
    """Of the weights that the loss used, over the tokens that trained."""
    return {"importance": count_bins(corrected.weights[corrected.mask].numpy(), IMPORTANCE_BINS)}
