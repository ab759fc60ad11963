"""Mismatch and staleness apart: two caps, where both factors are known and where they are not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from correction.correction import Correction, correct
from correction.decomposition import BehaviourScores, DecompositionReport
from correction.weights import OFF, Masked, Truncated
from tests.correction.batches import batches, corrections, gap_of, tensors
from tests.correction.plain import Batch

CAPS = Correction(weighting=Truncated(cap=2.0), staleness_cap=3.0, mismatch_cap=1.5)
ALL = torch.ones(1, 3, dtype=torch.bool)


def logs(*ratios: float) -> Tensor:
    return torch.tensor([ratios], dtype=torch.float64).log()


def report(corrected_report: DecompositionReport | None) -> DecompositionReport:
    assert corrected_report is not None
    return corrected_report


def test_each_factor_has_its_own_cap_and_the_product_one_where_they_are_not_known() -> None:
    # μ is 1 throughout: π_b is the mismatch, π_prox/π_b the staleness. The third token was never scored.
    behaviour = BehaviourScores(
        logprobs=torch.cat([logs(2.0, 0.5), torch.tensor([[math.nan]])], -1), scored=torch.tensor([[True, True, False]])
    )
    corrected = correct(logs(8.0, 0.25, 8.0), logs(1.0, 1.0, 1.0), ALL, CAPS, behaviour=behaviour)
    # Staleness 4 → 3 and 0.5; mismatch 2 → 1.5 and 0.5; the last as one, 8 → 2.
    assert corrected.weights.tolist() == [[pytest.approx(4.5), pytest.approx(0.25), 2.0]]
    assert corrected.bounded.tolist() == [[True, False, True]]


def test_the_factors_are_reported_apart() -> None:
    behaviour = BehaviourScores(logprobs=logs(2.0, 0.5, 1.0), scored=torch.tensor([[True, True, False]]))
    prox, mu = logs(8.0, 0.25, 8.0), logs(1.0, 1.0, 1.0)
    got = report(correct(prox, mu, ALL, CAPS, behaviour=behaviour).diagnostics.decomposition)
    assert got.scored_share == pytest.approx(2 / 3)
    assert (got.staleness_bounded_share, got.mismatch_bounded_share) == (0.5, 0.5)
    assert got.staleness == gap_of(prox, behaviour.logprobs, behaviour.scored)
    assert got.mismatch == gap_of(behaviour.logprobs, mu, behaviour.scored)
    assert got.staleness.k1 == pytest.approx(-(math.log(4) + math.log(0.5)) / 2)


def test_masking_drops_a_token_that_either_factor_puts_out_of_bounds() -> None:
    wanted = Correction(weighting=Masked(floor=0.5, cap=2.0), staleness_cap=3.0, mismatch_cap=1.5)
    behaviour = BehaviourScores(logprobs=logs(1.0, 1.6, 1.2), scored=torch.tensor([True]))
    corrected = correct(logs(4.0, 1.6, 2.4), logs(1.0, 1.0, 1.0), ALL, wanted, behaviour=behaviour)
    assert corrected.weights.tolist() == [[0.0, 0.0, pytest.approx(2.4)]]
    assert corrected.bounded.tolist() == [[True, True, False]]


def test_a_shared_ratio_is_split_only_once_all_of_its_sequence_is_scored() -> None:
    wanted = Correction(level="sequence", weighting=Truncated(cap=2.0), staleness_cap=3.0, mismatch_cap=1.5)
    prox, mu = logs(8.0, 1.0, 1.0).expand(2, -1), logs(1.0, 1.0, 1.0).expand(2, -1)
    mask = torch.tensor([[True, True, False], [True, True, False]])
    scored = torch.tensor([[True, True, False], [True, False, False]])
    behaviour = BehaviourScores(logprobs=logs(2.0, 1.0, 1.0).expand(2, -1), scored=scored)
    corrected = correct(prox, mu, mask, wanted, behaviour=behaviour)
    assert corrected.weights.tolist() == [[pytest.approx(4.5)] * 2 + [0.0], [pytest.approx(2.0)] * 2 + [0.0]]


@given(batches(), corrections, st.floats(-2, 2))
def test_caps_that_never_bind_leave_the_product(batch: Batch, wanted: Correction, shift: float) -> None:
    prox, mu, mask = tensors(batch)
    free = Correction(level=wanted.level, weighting=Truncated(cap=1e9), staleness_cap=1e9, mismatch_cap=1e9)
    behaviour = BehaviourScores(logprobs=mu + shift, scored=torch.ones(len(mask), dtype=torch.bool))
    split = correct(prox, mu, mask, free, behaviour=behaviour)
    assert torch.allclose(split.weights.log(), correct(prox, mu, mask, free).weights.log(), rtol=1e-9, atol=1e-9)


@given(batches(largest=1e4), corrections)
def test_nothing_scored_is_as_if_nothing_had_been_given(batch: Batch, wanted: Correction) -> None:
    prox, mu, mask = tensors(batch)
    behaviour = BehaviourScores(logprobs=torch.full_like(mu, math.nan), scored=torch.zeros_like(mask))
    split, whole = correct(prox, mu, mask, wanted, behaviour=behaviour), correct(prox, mu, mask, wanted)
    assert torch.equal(split.weights, whole.weights)
    assert torch.equal(split.bounded, whole.bounded)
    assert report(split.diagnostics.decomposition).scored_share == 0


def test_off_stays_off_however_much_is_known() -> None:
    behaviour = BehaviourScores(logprobs=logs(2.0, 3.0, 4.0), scored=ALL)
    corrected = correct(logs(9.0, 9.0, 9.0), logs(1.0, 1.0, 1.0), ALL, Correction(weighting=OFF), behaviour=behaviour)
    assert corrected.weights.tolist() == [[1.0, 1.0, 1.0]]
