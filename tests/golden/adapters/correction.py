"""Cases of the kinds `rollout_correction`, `probs_diff` and `vtrace`, through `correction/`."""

from collections.abc import Mapping

from torch import Tensor

from correction.correction import Corrected, Correction, correct
from correction.probability_gap import probability_gap
from correction.rejection import Criterion, CriterionLevel, Statistic
from correction.verl_metrics import probability_metrics, verl_metrics
from correction.vtrace import vtrace
from correction.weights import OFF, Masked, Truncated, Weighting
from tests.golden.folder import Golden

Outputs = Mapping[str, float | Tensor]

PROBABILITIES = {
    "probs_diff_max": "training/rollout_probs_diff_max",
    "probs_diff_mean": "training/rollout_probs_diff_mean",
    "probs_diff_std": "training/rollout_probs_diff_std",
    "probs_pearson_corr": "training/rollout_actor_probs_pearson_corr",
}


def correction_of(case: Golden) -> Correction:
    """The case's options in our words."""
    level, threshold = case.option("is_level"), case.option("is_threshold")
    normalize = case.option("is_batch_normalize", False)
    criteria = zip(case.option("rs_modes", []), case.option("rs_thresholds", []), strict=True)
    return Correction(
        level=level or "token",
        weighting=_weighting(threshold) if level else OFF,
        normalize=normalize if level else False,
        criteria=tuple(_criterion(mode, bound) for mode, bound in criteria),
    )


def outputs_of(corrected: Corrected) -> dict[str, float | Tensor]:
    """Weights, mask and metrics by the peer's names."""
    return {"weights": corrected.weights, "mask": corrected.mask, **verl_metrics(corrected, prefix="")}


def rollout_correction(case: Golden) -> Outputs:
    """A correction; how the batch is split into micro-batches is nothing to it."""
    case.ignore("micro_batch")
    logprobs, rollout_logprobs = case.input("logprobs"), case.input("rollout_logprobs")
    return outputs_of(correct(logprobs, rollout_logprobs, case.input("mask"), correction_of(case)))


def probs_diff(case: Golden) -> Outputs:
    """Distances of probabilities."""
    gap = probability_gap(case.input("old_logprobs"), case.input("rollout_logprobs"), case.input("mask"))
    metrics = probability_metrics(gap)
    return {name: metrics[ours] for name, ours in PROBABILITIES.items() if ours in metrics}


def v_trace(case: Golden) -> Outputs:
    """V-trace; `gamma` says how the discounts, which are an input, were made."""
    case.ignore("gamma")
    result = vtrace(
        case.input("log_rhos"),
        case.input("rewards"),
        case.input("values"),
        next_values=case.input("next_values"),
        discounts=case.input("discounts"),
        mask=case.input("mask") if case.has_input("mask") else None,
        rho_cap=case.option("rho_clip", 1.0),
        c_cap=case.option("c_clip", 1.0),
        pg_rho_cap=case.option("pg_rho_clip", 1.0),
        trace_lambda=case.option("lambda", 1.0),
    )
    return {"vs": result.targets, "pg_advantages": result.advantages}


def _weighting(threshold: float | str) -> Weighting:
    """A number truncates, `low_high` masks."""
    numbers = [float(part) for part in str(threshold).split("_")]
    return Truncated(cap=numbers[0]) if len(numbers) == 1 else Masked(floor=numbers[0], cap=numbers[1])


def _criterion(mode: str, bound: float | str) -> Criterion:
    """Of k1 a single number u means [1/u, u]."""
    level, statistic = mode.rsplit("_", 1)
    *lows, high = (float(part) for part in str(bound).split("_"))
    low = (lows[0] if lows else 1 / high) if statistic == "k1" else 0.0
    return Criterion(level=CriterionLevel(level), statistic=Statistic(statistic), low=low, high=high)
