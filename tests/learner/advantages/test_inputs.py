"""What estimators ask of a batch, and what a batch may not be."""

import math

import pytest
import torch

from learner.advantages.inputs import AdvantageInputs

MASK = torch.tensor([[True, False, True], [False, True, False], [False, False, False]])


def inputs(token_rewards: torch.Tensor) -> AdvantageInputs:
    return AdvantageInputs(mask=MASK, token_rewards=token_rewards, groups=torch.tensor([1, 1, -5]))


def test_rows_are_summed_up_over_their_tokens() -> None:
    batch = inputs(torch.tensor([[1.0, math.nan, 2.5], [math.inf, 4.0, 9.0], [math.nan, 1.0, 1.0]]))
    assert batch.scores.tolist() == [3.5, 4.0, 0.0]
    assert batch.scores.dtype == torch.float64
    assert batch.lengths.tolist() == [2.0, 1.0, 0.0]
    assert batch.counted.tolist() == [True, True, False]


@pytest.mark.parametrize(("given", "got"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_a_number_is_spread_over_the_tokens_of_its_row(given: torch.dtype, got: torch.dtype) -> None:
    spread = inputs(torch.zeros(3, 3, dtype=given)).spread(torch.tensor([0.5, -2.0, 7.0], dtype=torch.float64))
    assert spread.tolist() == [[0.5, 0.0, 0.5], [0.0, -2.0, 0.0], [0.0, 0.0, 0.0]]
    assert spread.dtype == got


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AssertionError):
        inputs(torch.zeros(3, 2))
    with pytest.raises(AssertionError):
        AdvantageInputs(mask=MASK.float(), token_rewards=torch.zeros(3, 3), groups=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(AssertionError):
        AdvantageInputs(mask=MASK, token_rewards=torch.zeros(3, 3), groups=torch.zeros(2, dtype=torch.int64))
