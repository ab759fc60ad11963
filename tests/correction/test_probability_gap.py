"""The gap of probabilities: none of equal policies, and a number where nothing varies."""

import pytest
import torch

from correction.probability_gap import probability_gap


def test_probabilities_that_are_the_same_correlate_and_have_no_gap() -> None:
    logprobs = torch.tensor([[-0.1, -2.0, -0.7]])
    gap = probability_gap(logprobs, logprobs, torch.ones(1, 3, dtype=torch.bool))
    assert (gap.max, gap.mean, gap.std, gap.correlation) == pytest.approx((0, 0, 0, 1))


def test_a_probability_that_does_not_vary_correlates_with_nothing() -> None:
    same, other = torch.full((1, 3), -1.0), torch.tensor([[-0.1, -2.0, -0.7]])
    assert probability_gap(same, other, torch.ones(1, 3, dtype=torch.bool)).correlation == 0
    assert probability_gap(other[:, :1], other[:, :1], torch.ones(1, 1, dtype=torch.bool)).std == 0
