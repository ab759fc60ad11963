"""verl's numbers by verl's names: every golden case of a correction, and what there is nothing to say of."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from correction.correction import Corrected, Correction, correct
from correction.probability_gap import probability_gap
from correction.rejection import Criterion, CriterionLevel, Statistic
from correction.verl_metrics import probability_metrics, verl_metrics
from correction.weights import OFF, Masked, Truncated, Weighting
from tests.correction import plain_metrics
from tests.correction.batches import batches, corrections, tensors
from tests.correction.plain import Batch
from tests.golden import Golden, golden_cases, golden_differences

CASES = [*golden_cases("rollout_correction"), *golden_differences("rollout_correction")]
PROBABILITIES = golden_cases("probs_diff")


def correction_of(options: Any) -> Correction:
    """verl's options in our words."""
    level = options.get("is_level")
    return Correction(
        level=level or "token",
        weighting=_weighting(options["is_threshold"]) if level else OFF,
        normalize=bool(level) and options.get("is_batch_normalize", False),
        criteria=tuple(
            _criterion(mode, bound, verl_compatible=options.get("verl_compatible", False))
            for mode, bound in zip(options.get("rs_modes", []), options.get("rs_thresholds", []), strict=True)
        ),
    )


def _weighting(threshold: float | str) -> Weighting:
    if isinstance(threshold, str):
        floor, cap = threshold.split("_")
        return Masked(floor=float(floor), cap=float(cap))
    return Truncated(cap=threshold)


def _criterion(mode: str, bound: float | str, *, verl_compatible: bool) -> Criterion:
    level, statistic = mode.rsplit("_", 1)
    numbers = [float(part) for part in str(bound).split("_")]
    low = 0.0 if statistic != "k1" else numbers[0] if len(numbers) == 2 else 1 / numbers[0]
    return Criterion(
        level=CriterionLevel(level),
        statistic=Statistic(statistic),
        low=low,
        high=numbers[-1],
        verl_compatible=verl_compatible,
    )


def corrected_case(case: Golden) -> Corrected:
    """A case of the kind `rollout_correction`, corrected."""
    return correct(
        case.input("logprobs"), case.input("rollout_logprobs"), case.input("mask"), correction_of(case.options)
    )


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_correction_and_all_its_numbers_are_golden(case: Golden) -> None:
    corrected = corrected_case(case)
    made: dict[str, float | Tensor] = {"weights": corrected.weights, "mask": corrected.mask}
    got = {**made, **verl_metrics(corrected, prefix="")}
    for name in case.wanted():
        case.check(name, got[name])


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_no_number_is_made_up_and_none_is_left_out(case: Golden) -> None:
    got = verl_metrics(corrected_case(case), prefix="")
    assert all(math.isfinite(number) for number in got.values())
    if not case.differs:
        assert got.keys() == case.scalars.keys()


@pytest.mark.parametrize("case", PROBABILITIES, ids=repr)
def test_gaps_of_probabilities_are_golden(case: Golden) -> None:
    gap = probability_gap(case.input("old_logprobs"), case.input("rollout_logprobs"), case.input("mask"))
    case.check("probs_diff_max", gap.max)
    case.check("probs_diff_mean", gap.mean)
    case.check("probs_diff_std", gap.std)
    case.check("probs_pearson_corr", gap.correlation)


def test_there_are_golden_cases() -> None:
    assert (len(CASES), len(PROBABILITIES)) == (37 + 13, 2)


@given(batches(), corrections)
def test_all_numbers_equal_plain_loops(batch: Batch, wanted: Correction) -> None:
    got = verl_metrics(correct(*tensors(batch), wanted), prefix="")
    want = plain_metrics.metrics(batch, wanted)
    assert got.keys() == want.keys()
    assert [got[name] for name in want] == pytest.approx(list(want.values()), rel=1e-9, abs=1e-9)


def test_names_have_verls_prefix_unless_told_otherwise() -> None:
    logprobs, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    corrected = correct(logprobs, logprobs, mask, Correction())
    assert verl_metrics(corrected)["rollout_corr/kl"] == verl_metrics(corrected, prefix="")["kl"] == 0


def test_of_an_empty_mask_there_is_nothing_to_say() -> None:
    junk, mask = torch.full((2, 3), math.nan), torch.zeros(2, 3, dtype=torch.bool)
    assert verl_metrics(correct(junk, junk, mask, Correction(weighting=Truncated(cap=2.0)))) == {}
    assert probability_metrics(probability_gap(junk, junk, mask)) == {"training/rollout_probs_diff_valid": 0.0}


def test_a_veto_is_reported_by_the_name_that_verl_gave_it() -> None:
    prox, mu = torch.tensor([[-1.0, -20.0], [-1.0, -1.0]]), torch.full((2, 2), -1.0)
    corrected = correct(prox, mu, torch.ones(2, 2, dtype=torch.bool), Correction(veto=1e-4))
    assert verl_metrics(corrected)["rollout_corr/rollout_is_veto_fraction"] == 0.5
