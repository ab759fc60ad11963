"""The reports of a correction by the names that verl's dashboards have.

Owns the names and which number of ours each of them is; docs/correction.md says where a meaning differs.
"""

from correction.correction import Corrected
from correction.gap import PolicyGap
from correction.probability_gap import ProbabilityGap
from correction.ratios import ROW_LEVELS
from correction.rejection import CriterionLevel, Statistic
from correction.rejection_report import CriterionReport
from correction.weight_report import WeightReport
from correction.weights import Masked, Unweighted

PREFIX = "rollout_corr/"


def verl_metrics(corrected: Corrected, *, prefix: str = PREFIX) -> dict[str, float]:
    """Everything that verl says of this correction; nothing where the mask is empty.

    As there, weights are left out where nothing is weighted, and criteria where there are none.
    """
    diagnostics = corrected.diagnostics
    if diagnostics.gap.num_tokens == 0:
        return {}
    metrics = _gap_metrics(diagnostics.gap)
    if not isinstance(corrected.correction.weighting, Unweighted):
        metrics |= _weight_metrics(corrected)
    for criterion, report in zip(corrected.correction.criteria, diagnostics.criteria, strict=True):
        metrics |= _criterion_metrics(
            report,
            is_token=criterion.level is CriterionLevel.token,
            is_signed=criterion.statistic is Statistic.k1,
        )
    if diagnostics.criteria:
        metrics["rollout_rs_masked_fraction"] = diagnostics.rejected.token_share
        metrics["rollout_rs_seq_masked_fraction"] = diagnostics.rejected.sequence_share
    if corrected.correction.veto > 0:
        metrics["rollout_is_veto_fraction"] = diagnostics.vetoed.sequence_share
    return {prefix + name: value for name, value in metrics.items()}


def _gap_metrics(gap: PolicyGap) -> dict[str, float]:
    """What verl always says of two policies, π_prox its training policy and μ its rollout's."""
    return {
        "kl": gap.k1,
        "k3_kl": gap.k3,
        "chi2_token": gap.chi2_token,
        "chi2_seq": gap.chi2_sequence,
        "training_ppl": gap.perplexity,
        "training_log_ppl": gap.log_perplexity,
        "rollout_ppl": gap.sampler_perplexity,
        "rollout_log_ppl": gap.sampler_log_perplexity,
        "log_ppl_diff": gap.log_perplexity_gap.mean,
        "log_ppl_abs_diff": gap.log_perplexity_gap_abs,
        "log_ppl_diff_max": gap.log_perplexity_gap.max,
        "log_ppl_diff_min": gap.log_perplexity_gap.min,
        "ppl_ratio": gap.perplexity_ratio,
    }


def _weight_metrics(corrected: Corrected) -> dict[str, float]:
    """Of the weights before normalisation."""
    report = corrected.diagnostics.weights
    metrics = {
        "rollout_is_mean": report.tokens.mean,
        "rollout_is_std": report.tokens.std,
        "rollout_is_eff_sample_size": report.ess_token,
        "rollout_is_seq_mean": report.sequences.mean,
        "rollout_is_seq_std": report.sequences.std,
        "rollout_is_seq_max": report.sequences.max,
        "rollout_is_seq_min": report.sequences.min,
        "rollout_is_seq_max_deviation": report.max_deviation,
        "rollout_is_seq_fraction_high": report.sequences_high,
        "rollout_is_seq_fraction_low": report.sequences_low,
        **_extremes(report, is_row_level=corrected.correction.level in ROW_LEVELS),
    }
    if corrected.correction.normalize:
        metrics["rollout_is_batch_norm_factor"] = report.normalizer
    if isinstance(corrected.correction.weighting, Masked):
        metrics["rollout_is_oob_ratio"] = report.masked_share
    return metrics


def _extremes(report: WeightReport, *, is_row_level: bool) -> dict[str, float]:
    # Of tokens verl gives the extremes of the weights, of sequences those of the ratios.
    if is_row_level:
        values = (report.ratio_max, report.ratio_min, report.sequences_high, report.sequences_low)
    else:
        values = (report.tokens.max, report.tokens.min, report.tokens_high, report.tokens_low)
    names = ("rollout_is_max", "rollout_is_min", "rollout_is_ratio_fraction_high", "rollout_is_ratio_fraction_low")
    return dict(zip(names, values, strict=True))


def _criterion_metrics(report: CriterionReport, *, is_token: bool, is_signed: bool) -> dict[str, float]:
    """Of one criterion; a low share of sequences stands only where a statistic can be too low."""
    own = {
        "mean": report.tokens.mean,
        "std": report.tokens.std,
        "max": report.tokens.max,
        "min": report.tokens.min,
        "fraction_high": report.tokens_high if is_token else report.sequences_high,
        "fraction_low": report.tokens_low if is_token else report.sequences_low,
        "masked_fraction": report.rejected.token_share,
        "seq_mean": report.sequences.mean,
        "seq_std": report.sequences.std,
        "seq_max": report.sequences.max,
        "seq_min": report.sequences.min,
        "seq_max_deviation": report.max_deviation,
        "seq_fraction_high": report.sequences_high,
        "seq_masked_fraction": report.rejected.sequence_share,
    }
    if is_signed:
        own["seq_fraction_low"] = report.sequences_low
    return {f"rollout_rs_{report.name}_{name}": value for name, value in own.items()}


def probability_metrics(gap: ProbabilityGap) -> dict[str, float]:
    """What verl's trainer says of probabilities, by its whole names; only that nothing is valid where nothing is."""
    if gap.num_tokens == 0:
        return {"training/rollout_probs_diff_valid": 0.0}
    return {
        "training/rollout_probs_diff_valid": 1.0,
        "training/rollout_probs_diff_max": gap.max,
        "training/rollout_probs_diff_mean": gap.mean,
        "training/rollout_probs_diff_std": gap.std,
        "training/rollout_actor_probs_pearson_corr": gap.correlation,
    }
