"""Optimal token baselines: a plain float64 loop, tails and rows alone."""

import math
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from learner.advantages.inputs import AdvantageInputs
from learner.advantages.token_baseline import EPS, optimal_token_baseline, tir_optimal_token_baseline
from tests.learner.advantages.batches import drawn_inputs, masks

BOTH = (optimal_token_baseline, tir_optimal_token_baseline)
CONFIG = AdvantageConfig()


def looped(inputs: AdvantageInputs, *, is_compact: bool, zero_tail: bool) -> Tensor:
    """Token by token; a place is a position, or the number of tokens before (`is_compact`)."""
    assert inputs.proximal_logprobs is not None and inputs.sum_pi_squared is not None
    num_rows = len(inputs.mask)
    places: list[dict[int, int]] = []
    to_go: list[dict[int, float]] = []
    energy: list[dict[int, float]] = []
    for i in range(num_rows):
        tokens = inputs.mask[i].nonzero()[:, 0].tolist()
        places.append({t: k if is_compact else t for k, t in enumerate(tokens)})
        to_go.append(
            {places[i][t]: float(inputs.token_rewards[i, [u for u in tokens if u >= t]].sum()) for t in tokens}
        )
        energy.append({})
        running = 0.0
        for t in tokens:
            factor = 1.0 if inputs.weights is None else float(inputs.weights[i, t]) ** 2
            probability = math.exp(float(inputs.proximal_logprobs[i, t]))
            running += (1 - 2 * probability + float(inputs.sum_pi_squared[i, t])) * factor
            energy[i][places[i][t]] = running
    advantages = torch.zeros(inputs.mask.shape, dtype=torch.float64)
    for i in range(num_rows):
        peers = [j for j in range(num_rows) if inputs.groups[j] == inputs.groups[i] and places[j]]
        others_end = max((max(places[j].values()) + 1 for j in peers if j != i), default=0)
        for t, place in places[i].items():
            alive = [j for j in peers if place in energy[j]]
            baseline = sum(to_go[j][place] * energy[j][place] for j in alive)
            baseline /= sum(energy[j][place] for j in alive) + EPS
            if len(peers) == 1 or (zero_tail and place >= others_end):
                baseline = 0.0
            advantages[i, t] = to_go[i][place] - baseline
    return advantages


@given(masks(max_tokens=8), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 1000))
def test_they_equal_a_loop(mask: Tensor, is_compact: bool, zero_tail: bool, is_weighted: bool, seed: int) -> None:
    inputs = drawn_inputs(mask, seed)
    # Σπ² ≥ π² of the token itself, as of any distribution.
    assert inputs.proximal_logprobs is not None and inputs.sum_pi_squared is not None
    at_least = (2 * inputs.proximal_logprobs).exp()
    inputs = replace(inputs, sum_pi_squared=torch.maximum(inputs.sum_pi_squared, at_least))
    inputs = inputs if is_weighted else replace(inputs, weights=None)
    function = tir_optimal_token_baseline if is_compact else optimal_token_baseline
    want = looped(inputs, is_compact=is_compact, zero_tail=zero_tail)
    assert torch.allclose(function(inputs, CONFIG, zero_tail=zero_tail).advantages, want, rtol=1e-9, atol=1e-9)


def test_a_trajectory_alone_has_its_reward_to_go() -> None:
    inputs = AdvantageInputs(
        mask=torch.tensor([[True, True], [False, False]]),
        token_rewards=torch.tensor([[1.0, 2.0], [9.0, 9.0]]),
        groups=torch.tensor([5, 5]),
        proximal_logprobs=torch.tensor([[-1.0, -1.0], [math.nan, math.nan]]),
        sum_pi_squared=torch.tensor([[0.5, 0.5], [math.inf, math.nan]]),
    )
    for function in BOTH:
        for zero_tail in (True, False):
            got = function(inputs, CONFIG, zero_tail=zero_tail)
            assert got.advantages.tolist() == [[3.0, 2.0], [0.0, 0.0]]


def test_equal_rewards_to_go_are_worth_nothing() -> None:
    inputs = drawn_inputs(torch.ones(4, 6, dtype=torch.bool), 0)
    rewards = torch.zeros(4, 6, dtype=torch.float64)
    rewards[:, -1] = 0.3
    inputs = replace(inputs, token_rewards=rewards, groups=torch.zeros(4, dtype=torch.int64))
    for function in BOTH:
        assert function(inputs, CONFIG).advantages.abs().max() < 1e-7
