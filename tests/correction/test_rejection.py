"""Criteria: which direction a bound holds in, what a level compares, and the veto's one side."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from correction.correction import correct
from correction.rejection import Criterion, CriterionLevel, Judge, Statistic, Veto
from correction.rows import TokenRows
from tests.golden import Golden, golden_differences
from tests.golden.adapters.correction import correction_of

INVERTED = [
    case
    for case in golden_differences("rollout_correction", "token_k1", "seq_mean_k1", "seq_sum_k1")
    if case.options["rs_thresholds"] != ["0.5_2.0"]
]


def kept(judge: Judge, *ratios: float) -> list[bool]:
    """Of one row with these ratios π_prox/μ; a ratio of 0 stands for a hole."""
    mask = torch.tensor([ratios]) > 0
    log_ratios = torch.tensor([ratios], dtype=torch.float64).log()
    keep = judge.judge(TokenRows.of(log_ratios, torch.zeros_like(log_ratios), mask)).keep.expand_as(mask)
    return keep[mask].tolist()


def k1(level: CriterionLevel, low: float, high: float, *, verl_compatible: bool = False) -> Criterion:
    return Criterion(level=level, statistic=Statistic.k1, low=low, high=high, verl_compatible=verl_compatible)


def test_the_bounds_of_k1_are_those_of_the_ratio() -> None:
    assert kept(k1(CriterionLevel.token, 0.5, 1.2), 0.4, 0.7, 1.0, 1.1, 1.5) == [False, True, True, True, False]


def test_compatible_with_verl_they_are_those_of_its_inverse() -> None:
    criterion = k1(CriterionLevel.token, 0.5, 1.2, verl_compatible=True)
    assert kept(criterion, 0.4, 0.7, 1.0, 1.5, 1.9) == [False, False, True, True, True]


def test_reciprocal_bounds_are_the_same_both_ways() -> None:
    ratios = (0.3, 0.6, 1.0, 1.9, 2.5)
    criteria = [k1(CriterionLevel.token, 0.5, 2.0, verl_compatible=compatible) for compatible in (False, True)]
    assert kept(criteria[0], *ratios) == kept(criteria[1], *ratios) == [False, True, True, True, False]


def test_a_sequence_is_judged_by_the_product_or_by_the_geometric_mean() -> None:
    ratios = (1.5, 0.0, 1.5, 1.5)
    assert kept(k1(CriterionLevel.seq_sum, 0.5, 2.0), *ratios) == [False] * 3
    assert kept(k1(CriterionLevel.seq_mean, 0.5, 2.0), *ratios) == [True] * 3


def test_the_largest_of_a_sequence_may_be_out_of_bounds_on_either_side() -> None:
    criterion = k1(CriterionLevel.seq_max, 0.5, 10.0)
    assert kept(criterion, 9.0, 0.6) == [True, True]
    assert kept(criterion, 9.0, 0.4) == [False, False]
    assert kept(criterion, 11.0, 1.0) == [False, False]


@pytest.mark.parametrize(
    ("statistic", "value"),
    [(Statistic.k2, math.log(3) ** 2 / 2), (Statistic.k3, 3 - 1 - math.log(3))],
)
def test_k2_and_k3_have_one_bound(statistic: Statistic, value: float) -> None:
    def criterion(level: CriterionLevel, high: float) -> Criterion:
        return Criterion(level=level, statistic=statistic, high=high)

    assert kept(criterion(CriterionLevel.token, value - 1e-6), 1.0, 3.0) == [True, False]
    assert kept(criterion(CriterionLevel.token, value + 1e-6), 1.0, 3.0) == [True, True]
    assert kept(criterion(CriterionLevel.seq_sum, value - 1e-6), 1.0, 3.0) == [False, False]
    assert kept(criterion(CriterionLevel.seq_mean, value / 2 + 1e-6), 1.0, 3.0) == [True, True]
    assert kept(criterion(CriterionLevel.seq_max, value - 1e-6), 1.0, 3.0) == [False, False]


def test_the_veto_sees_only_what_the_learner_finds_impossible() -> None:
    assert kept(Veto(ratio=1e-4), 1.0, 1e-5) == [False, False]
    assert kept(Veto(ratio=1e-4), 1.0, 1e-3, 1e5) == [True, True, True]


def test_the_veto_is_not_fooled_by_the_clamp_of_log_ratios() -> None:
    assert kept(Veto(ratio=1e-12), 1.0, 1e-13) == [False, False]


def test_a_hole_is_no_token_to_be_judged() -> None:
    assert kept(Veto(ratio=1.0), 2.0, 0.0, 2.0) == [True, True]
    assert kept(k1(CriterionLevel.seq_max, 0.5, 2.0), 1.5, 0.0) == [True]


@pytest.mark.parametrize("case", INVERTED, ids=repr)
def test_where_verl_bounds_the_inverse_we_do_not_unless_asked_to(case: Golden) -> None:
    prox, mu, mask = case.input("logprobs"), case.input("rollout_logprobs"), case.input("mask")
    ours = correction_of(case)
    right = correct(prox, mu, mask, ours).mask
    inverted = tuple(replace(criterion, verl_compatible=True) for criterion in ours.criteria)
    old = correct(prox, mu, mask, replace(ours, criteria=inverted)).mask
    assert right.tolist() == case.wanted()["mask"].tolist()
    assert old.tolist() == verl_mask(case).tolist() != right.tolist()


def verl_mask(case: Golden) -> Tensor:
    return case.arrays.read(case.file, f"{case.id}/verl/mask")


@pytest.mark.parametrize(
    ("statistic", "low", "high"),
    [("k1", 0.0, 2.0), ("k1", 1.1, 2.0), ("k1", 0.5, 0.9), ("k2", 0.5, 2.0), ("k3", 0.0, 0.0), ("k3", 0.0, math.inf)],
)
def test_bounds_must_make_sense(statistic: str, low: float, high: float) -> None:
    with pytest.raises(AssertionError):
        Criterion(level=CriterionLevel.token, statistic=Statistic(statistic), low=low, high=high)
