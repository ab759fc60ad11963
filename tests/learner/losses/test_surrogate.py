"""What a surrogate sees of the tokens."""

import math

import torch

from learner.losses.surrogate import SurrogateInputs


def inputs(policy: torch.Tensor) -> SurrogateInputs:
    return SurrogateInputs(
        policy=policy,
        proximal=torch.tensor([[-2.0, math.nan], [-2.0, -1e4]]),
        advantages=torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
        mask=torch.tensor([[True, False], [True, True]]),
        selected=None,
    )


def test_nothing_of_what_is_masked_can_be_seen() -> None:
    tokens = inputs(torch.tensor([[-1.0, math.inf], [-1.0, 0.0]]))
    assert tokens.logprobs.tolist() == [[-1.0, 0.0], [-1.0, 0.0]]
    assert tokens.proximal_logprobs.tolist() == [[-2.0, 0.0], [-2.0, -1e4]]
    assert tokens.unbounded_log_ratios.tolist() == [[1.0, 0.0], [1.0, 1e4]]
    assert tokens.log_ratios.tolist() == [[1.0, 0.0], [1.0, 20.0]]
    assert tokens.row_mean(tokens.unbounded_log_ratios).tolist() == [[1.0], [5000.5]]
    assert tokens.by_sign(2.0, 3.0).tolist() == [[2.0, 3.0], [3.0, 3.0]]


def test_a_quantity_keeps_its_gradient_though_it_was_first_asked_for_without() -> None:
    tokens = inputs(torch.tensor([[-1.0, 0.0], [-1.0, 0.0]], requires_grad=True))
    with torch.no_grad():
        assert bool((tokens.ratios > 2).any())
    assert tokens.ratios.requires_grad and tokens.log_ratios.requires_grad
