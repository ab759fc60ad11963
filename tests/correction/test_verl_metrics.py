"""verl's numbers by verl's names: none missing, all as plain loops have them, nothing of nothing."""

import math

import pytest
import torch
from hypothesis import given

from correction.correction import Correction, correct
from correction.probability_gap import probability_gap
from correction.verl_metrics import probability_metrics, verl_metrics
from correction.weights import Truncated
from tests.correction import plain_metrics
from tests.correction.batches import batches, corrections, tensors
from tests.correction.plain import Batch
from tests.golden import Golden, golden_cases
from tests.golden.adapters.correction import rollout_correction


@pytest.mark.parametrize("case", golden_cases("rollout_correction"), ids=repr)
def test_no_number_is_made_up_and_none_is_left_out(case: Golden) -> None:
    assert rollout_correction(case).keys() == {"weights", "mask"} | case.scalars.keys()


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
