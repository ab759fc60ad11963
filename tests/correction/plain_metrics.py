"""verl's numbers of a correction, from their definitions, as plain loops over Python's floats."""

import math

from correction.correction import Correction
from correction.rejection import Criterion
from correction.weights import OFF
from tests.correction import plain
from tests.correction.plain import Batch, clamp, ess, mean, pstd, std


def metrics(batch: Batch, correction: Correction) -> dict[str, float]:
    """Everything that `verl_metrics` gives, without its prefix."""
    if not any(batch.log_ratios):
        return {}
    numbers = gap(batch)
    if correction.weighting != OFF:
        numbers |= weights(batch, correction)
    for criterion in correction.criteria:
        numbers |= criterion_numbers(batch, criterion)
    left = plain.keep(batch, correction)
    if correction.criteria:
        numbers["rollout_rs_masked_fraction"] = lost(batch, left)[0]
        numbers["rollout_rs_seq_masked_fraction"] = lost(batch, left)[1]
    if correction.veto > 0:
        vetoed = [min(row.values()) < math.log(correction.veto) for row in batch.log_ratios if row]
        numbers["rollout_is_veto_fraction"] = mean([float(veto) for veto in vetoed])
    return numbers


def lost(batch: Batch, left: list[list[bool]]) -> tuple[float, float]:
    """Shares of the tokens that a mask lost, and of the sequences that lost one."""
    rows = [[left[i][t] for t in row] for i, row in enumerate(batch.log_ratios) if row]
    tokens = [kept for row in rows for kept in row]
    return 1 - mean([float(kept) for kept in tokens]), mean([float(not all(row)) for row in rows])


def gap(batch: Batch) -> dict[str, float]:
    rows = [row for row in batch.log_ratios if row]
    xs = [x for row in rows for x in row.values()]
    proximal = _log_perplexities(batch.proximal, batch.mask)
    rollout = _log_perplexities(batch.rollout, batch.mask)
    gaps = [-mean(list(row.values())) for row in rows]
    return {
        "kl": mean([-x for x in xs]),
        "k3_kl": mean([math.expm1(clamp(x)) - clamp(x) for x in xs]),
        "chi2_token": mean([math.expm1(2 * clamp(x)) for x in xs]),
        "chi2_seq": mean([math.expm1(2 * clamp(math.fsum(row.values()))) for row in rows]),
        "training_ppl": mean([math.exp(min(x, 20)) for x in proximal]),
        "training_log_ppl": mean(proximal),
        "rollout_ppl": mean([math.exp(min(x, 20)) for x in rollout]),
        "rollout_log_ppl": mean(rollout),
        "log_ppl_diff": mean(gaps),
        "log_ppl_abs_diff": mean([abs(x) for x in gaps]),
        "log_ppl_diff_max": max(gaps),
        "log_ppl_diff_min": min(gaps),
        "ppl_ratio": mean([math.exp(min(x, 20)) for x in gaps]),
    }


def _log_perplexities(logprobs: list[list[float]], mask: list[list[bool]]) -> list[float]:
    chosen = [[p for p, kept in zip(ps, ms, strict=True) if kept] for ps, ms in zip(logprobs, mask, strict=True)]
    return [-mean(row) for row in chosen if row]


def weights(batch: Batch, correction: Correction) -> dict[str, float]:
    rows = [list(row.values()) for row in plain.weights(batch, correction) if row]
    tokens, means = [w for row in rows for w in row], [mean(row) for row in rows]
    ratios = [
        [ratio for run, ratio in plain.shared(row, correction.level) for _ in run] for row in batch.log_ratios if row
    ]
    ratio_means = [mean(row) for row in ratios]
    is_row_level = correction.level in ("sequence", "geometric")
    each = ratio_means if is_row_level else [ratio for row in ratios for ratio in row]
    low, high = correction.weighting.marks
    numbers = {
        "mean": mean(tokens),
        "std": pstd(tokens),
        "eff_sample_size": ess(tokens),
        "max": max(each if is_row_level else tokens),
        "min": min(each if is_row_level else tokens),
        "ratio_fraction_high": _share([ratio > high for ratio in each]),
        "ratio_fraction_low": _share([ratio < low for ratio in each]),
        "seq_mean": mean(means),
        "seq_std": std(means),
        "seq_max": max(means),
        "seq_min": min(means),
        "seq_max_deviation": max(abs(w - 1) for w in means),
        "seq_fraction_high": _share([ratio > high for ratio in ratio_means]),
        "seq_fraction_low": _share([ratio < low for ratio in ratio_means]),
    }
    if correction.normalize:
        numbers["batch_norm_factor"] = plain.normalizer(batch, correction)
    if correction.weighting.drops:
        outside = [not low <= ratio <= high for row in ratios for ratio in row]
        numbers["oob_ratio"] = _share(outside)
    return {f"rollout_is_{name}": number for name, number in numbers.items()}


def criterion_numbers(batch: Batch, criterion: Criterion) -> dict[str, float]:
    rows = [(row, plain.statistic(row, criterion)) for row in batch.log_ratios if row]
    tokens = [v for row, values in rows for v in (values if len(values) == len(row) else values * len(row))]
    sequences = [mean(values) for _, values in rows]
    each = tokens if criterion.level == "token" else sequences
    low, high = criterion.limits
    without = [
        [t in row and t not in plain.rejected(row, criterion) for t in range(len(mask))]
        for row, mask in zip(batch.log_ratios, batch.mask, strict=True)
    ]
    masked, sequences_masked = lost(batch, without)
    numbers = {
        "mean": mean(tokens),
        "std": pstd([min(max(v, low), high) for v in tokens]),
        "max": max(each),
        "min": min(each),
        "fraction_high": _share([v > high for v in each]),
        "fraction_low": _share([v < low for v in each]),
        "masked_fraction": masked,
        "seq_mean": mean(sequences),
        "seq_std": std(sequences),
        "seq_max": max(sequences),
        "seq_min": min(sequences),
        "seq_max_deviation": max(abs(v) for v in sequences),
        "seq_fraction_high": _share([v > high for v in sequences]),
        "seq_masked_fraction": sequences_masked,
    }
    if criterion.statistic == "k1":
        numbers["seq_fraction_low"] = _share([v < low for v in sequences])
    return {f"rollout_rs_{criterion.name}_{name}": number for name, number in numbers.items()}


def _share(conditions: list[bool]) -> float:
    return mean([float(condition) for condition in conditions])
