"""The correction of a batch: against plain loops, at its edges, and what must not matter."""

import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import correction.rows
from correction.correction import Corrected, Correction, correct, weigh_tokens
from correction.ratios import LEVELS
from correction.rejection import Criterion, CriterionLevel, Statistic
from correction.verl_metrics import verl_metrics
from correction.weights import OFF, Masked, Truncated
from tests.correction import plain
from tests.correction.batches import batches, corrections, tensors
from tests.correction.plain import Batch

EVERYTHING = Correction(
    level="segment",
    weighting=Truncated(cap=2.0, floor=0.1),
    normalize=True,
    criteria=tuple(
        Criterion(level=level, statistic=statistic, low=0.5 if statistic == Statistic.k1 else 0.0, high=2.0)
        for level in CriterionLevel
        for statistic in Statistic
    ),
    veto=1e-4,
)


def rows_of(values: list[dict[int, float]], batch: Batch) -> list[list[float]]:
    return [[row.get(t, 0.0) for t in range(len(mask))] for row, mask in zip(values, batch.mask, strict=True)]


def close(got: Tensor, want: list[list[float]]) -> bool:
    expected = torch.tensor(want, dtype=torch.float64).view_as(got)
    return bool(torch.allclose(got.double(), expected, rtol=1e-9, atol=1e-9))


def numbers(report: Any) -> list[float]:
    """Every number in a tree of dataclasses."""
    if is_dataclass(report):
        return [number for field in fields(report) for number in numbers(getattr(report, field.name))]
    if isinstance(report, tuple):
        return [number for part in report for number in numbers(part)]
    return [report] if isinstance(report, int | float) else []


def tensors_of(corrected: Corrected) -> list[Tensor]:
    return [corrected.weights, corrected.log_ratios, corrected.mask, corrected.bounded]


@given(batches(), corrections)
def test_weights_and_mask_equal_plain_loops(batch: Batch, wanted: Correction) -> None:
    corrected = correct(*tensors(batch), wanted)
    factor = plain.normalizer(batch, wanted)
    weights = [{t: w / factor for t, w in row.items()} for row in plain.weights(batch, wanted)]
    assert close(corrected.weights, rows_of(weights, batch))
    assert close(corrected.log_ratios, rows_of(batch.log_ratios, batch))
    assert corrected.diagnostics.weights.normalizer == pytest.approx(factor, rel=1e-9)


@given(batches(), corrections)
def test_what_is_left_and_what_was_bounded_equal_plain_loops(batch: Batch, wanted: Correction) -> None:
    # Thresholds are met exactly only by accident: a draw that is within rounding of one says nothing.
    corrected = correct(*tensors(batch), wanted)
    assert corrected.mask.tolist() == plain.keep(batch, wanted)
    bounded = [
        {
            t: float(plain.weigh(ratio, wanted.weighting) != ratio)
            for run, ratio in plain.shared(row, wanted.level)
            for t in run
        }
        for row in batch.log_ratios
    ]
    if wanted.weighting != OFF:
        assert corrected.bounded.double().tolist() == rows_of(bounded, batch)


@given(batches(), corrections)
def test_weights_can_be_had_of_some_rows_by_themselves(batch: Batch, wanted: Correction) -> None:
    prox, mu, mask = tensors(batch)
    whole = correct(prox, mu, mask, replace(wanted, normalize=False))
    for row in range(len(mask)):
        part = weigh_tokens(prox[row : row + 1], mu[row : row + 1], mask[row : row + 1], wanted)
        assert torch.equal(part.weights[0], whole.weights[row])
        assert torch.equal(part.bounded[0], whole.bounded[row])


@given(batches(largest=1e4), corrections)
def test_any_batch_gives_finite_numbers(batch: Batch, wanted: Correction) -> None:
    corrected = correct(*tensors(batch, torch.float32), wanted)
    assert all(bool(part.isfinite().all()) for part in tensors_of(corrected))
    assert all(math.isfinite(number) for number in numbers(corrected.diagnostics))
    assert all(math.isfinite(number) for number in verl_metrics(corrected).values())


@given(batches(largest=1e4), corrections)
def test_what_stands_outside_of_the_mask_does_not_matter(batch: Batch, wanted: Correction) -> None:
    prox, mu, mask = tensors(batch)
    poisoned = correct(prox, mu, mask, wanted)
    clean = correct(torch.where(mask, prox, -1.0), torch.where(mask, mu, -1.0), mask, wanted)
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(poisoned), tensors_of(clean), strict=True))
    assert poisoned.diagnostics == clean.diagnostics


@given(batches(), corrections, st.integers(1, 12))
def test_the_size_of_chunks_does_not_matter(batch: Batch, wanted: Correction, size: int) -> None:
    whole = correct(*tensors(batch), wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(correction.rows, "SMALL_CHUNK_ELEMENTS", size)
        chunked = correct(*tensors(batch), wanted)
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(whole), tensors_of(chunked), strict=True))
    assert whole.diagnostics == chunked.diagnostics


@given(batches(largest=0.5), corrections)
def test_bfloat16_is_read_as_the_float32_that_it_stands_for(batch: Batch, wanted: Correction) -> None:
    prox, mu, mask = tensors(batch, torch.bfloat16)
    assert correct(prox, mu, mask, wanted).diagnostics == correct(prox.float(), mu.float(), mask, wanted).diagnostics
    assert correct(prox, mu, mask, wanted).weights.dtype == torch.float32


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_equal_policies_weigh_one_lose_nothing_and_are_no_gap_apart(level: str) -> None:
    logprobs = torch.tensor([[-0.1, -5.0, -30.0], [-1.0, math.nan, -2.0]])
    mask = logprobs.isfinite()
    corrected = correct(logprobs, logprobs, mask, Correction(level=level, weighting=Truncated(cap=2.0), veto=1.0))
    assert torch.equal(corrected.weights, mask.float())
    assert torch.equal(corrected.mask, mask)
    diagnostics = corrected.diagnostics
    assert (diagnostics.gap.k1, diagnostics.gap.k3, diagnostics.gap.chi2_token, diagnostics.gap.chi2_sequence) == (
        0,
    ) * 4
    assert (diagnostics.weights.ess_token, diagnostics.weights.ess_sequence) == (1, 1)


def test_levels_share_a_ratio_as_they_say() -> None:
    log_ratios = torch.tensor([[0.1, 0.2, 9.0, 0.4]], dtype=torch.float64)
    mask, mu = torch.tensor([[True, True, False, True]]), torch.full((1, 4), -10.0, dtype=torch.float64)
    got = {
        level: correct(mu + log_ratios, mu, mask, Correction(level=level, weighting=Truncated(cap=9.0))).weights.log()[
            0
        ]
        for level in LEVELS
    }
    inf = -math.inf
    assert got["token"].tolist() == pytest.approx([0.1, 0.2, inf, 0.4])
    assert got["segment"].tolist() == pytest.approx([0.3, 0.3, inf, 0.4])
    assert got["sequence"].tolist() == pytest.approx([0.7, 0.7, inf, 0.7])
    assert got["geometric"].tolist() == pytest.approx([0.7 / 3, 0.7 / 3, inf, 0.7 / 3])


def test_weights_normalise_over_what_has_a_ratio_of_its_own() -> None:
    # Two turns with ratios e and 1 in one row, one of 1 in the other: three turns, two sequences, five tokens.
    log_ratios = torch.tensor([[0.5, 0.5, math.nan, 0.0], [0.0, 0.0, math.nan, math.nan]], dtype=torch.float64)
    mask, e = log_ratios.isfinite(), math.e
    means = {
        level: correct(
            log_ratios,
            torch.zeros_like(log_ratios),
            mask,
            Correction(level=level, weighting=Truncated(cap=9.0), normalize=True),
        ).diagnostics.weights.normalizer
        for level in LEVELS
    }
    assert means["token"] == pytest.approx((2 * math.sqrt(e) + 3) / 5)
    assert means["segment"] == pytest.approx((e + 2) / 3)
    assert means["sequence"] == pytest.approx((e + 1) / 2)
    assert means["geometric"] == pytest.approx((e ** (1 / 3) + 1) / 2)


def test_a_batch_that_is_rejected_whole_is_a_number() -> None:
    prox, mu, mask = torch.zeros(2, 3), torch.full((2, 3), -5.0), torch.ones(2, 3, dtype=torch.bool)
    wanted = Correction(
        weighting=Masked(floor=0.9, cap=1.1),
        normalize=True,
        criteria=(Criterion(level=CriterionLevel.token, statistic=Statistic.k2, high=0.1),),
    )
    corrected = correct(prox, mu, mask, wanted)
    assert not corrected.mask.any() and not corrected.weights.any()
    weights, rejected = corrected.diagnostics.weights, corrected.diagnostics.rejected
    assert (weights.ess_token, weights.masked_share, weights.normalizer) == (0, 1, 1)
    assert (rejected.token_share, rejected.sequence_share) == (1, 1)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_nothing_to_correct_is_all_zeros(shape: tuple[int, int]) -> None:
    junk, mask = torch.full(shape, math.nan), torch.zeros(shape, dtype=torch.bool)
    corrected = correct(junk, junk, mask, EVERYTHING)
    assert corrected.weights.shape == corrected.mask.shape == shape
    assert not corrected.weights.any() and not corrected.mask.any()
    assert {number for number in numbers(corrected.diagnostics) if number not in (0, 1)} == set()


def test_a_single_token_is_a_batch() -> None:
    corrected = correct(torch.tensor([[-1.0]]), torch.tensor([[-2.0]]), torch.tensor([[True]]), EVERYTHING)
    assert corrected.weights.tolist() == [[1.0]]
    assert corrected.diagnostics.weights.normalizer == pytest.approx(2.0)
    assert corrected.diagnostics.weights.tokens.std == 0


def test_weights_do_not_depend_on_what_rejection_took() -> None:
    prox, mu, mask = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -9.0]]), torch.ones(1, 2, dtype=torch.bool)
    criterion = Criterion(level=CriterionLevel.seq_max, statistic=Statistic.k2, high=1.0)
    corrected = correct(prox, mu, mask, Correction(weighting=Truncated(cap=2.0), criteria=(criterion,)))
    assert corrected.weights.tolist() == [[1.0, 2.0]]
    assert corrected.mask.tolist() == [[False, False]]


def test_every_rejection_has_a_reason() -> None:
    prox = torch.tensor([[-1.0, -1.0, -1.0], [-12.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    mu = torch.tensor([[-1.0, -3.0, -1.0], [-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    criterion = Criterion(level=CriterionLevel.token, statistic=Statistic.k1, low=0.5, high=2.0)
    mask = torch.ones(3, 3, dtype=torch.bool)
    corrected = correct(prox, mu, mask, Correction(criteria=(criterion,), veto=1e-3))
    assert corrected.mask.tolist() == [[True, False, True], [False] * 3, [True] * 3]
    reports = corrected.diagnostics
    assert reports.criteria[0].rejected.token_share == pytest.approx(2 / 9)
    assert reports.criteria[0].rejected.sequence_share == pytest.approx(2 / 3)
    assert reports.vetoed.token_share == reports.vetoed.sequence_share == pytest.approx(1 / 3)
    assert reports.rejected.token_share == pytest.approx(4 / 9)


def test_nothing_of_a_correction_carries_a_gradient() -> None:
    prox = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    corrected = correct(prox, torch.full((1, 2), -1.5), torch.ones(1, 2, dtype=torch.bool), EVERYTHING)
    assert not any(part.requires_grad for part in tensors_of(corrected))


def test_criteria_of_one_name_are_a_mistake() -> None:
    criterion = Criterion(level=CriterionLevel.token, statistic=Statistic.k2, high=1.0)
    with pytest.raises(AssertionError):
        Correction(criteria=(criterion, criterion))
