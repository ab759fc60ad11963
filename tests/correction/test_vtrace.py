"""V-trace: a plain float64 loop, on-policy returns, and log-ratios far out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from correction.vtrace import VTrace, vtrace
from tests.learner.advantages.batches import drawn_tokens, masks

caps = st.sampled_from([0.5, 1.0, 1.7])


def looped(
    log_rhos: list[float],
    rewards: list[float],
    values: list[float],
    next_values: list[float],
    discounts: list[float],
    *,
    caps: tuple[float, float, float],
    trace_lambda: float,
) -> tuple[list[float], list[float]]:
    """Targets and advantages of one row without holes, in the paper's words."""
    rho_cap, c_cap, pg_rho_cap = caps
    targets, advantages = [], []
    correction = following_target = following_value = 0.0
    for t in reversed(range(len(rewards))):
        rho = math.exp(log_rhos[t])
        is_last = t == len(rewards) - 1
        if is_last:
            following_target = following_value = next_values[t]
        delta = min(rho_cap, rho) * (rewards[t] + discounts[t] * next_values[t] - values[t])
        q = trace_lambda * following_target + (1 - trace_lambda) * following_value
        advantages.append(min(pg_rho_cap, rho) * (rewards[t] + discounts[t] * q - values[t]))
        correction = delta + discounts[t] * trace_lambda * min(c_cap, rho) * correction
        following_target, following_value = values[t] + correction, values[t]
        targets.append(following_target)
    return targets[::-1], advantages[::-1]


@given(masks(), st.tuples(caps, caps, caps), st.sampled_from([0.0, 0.6, 1.0]), st.booleans(), st.integers(0, 1000))
def test_it_equals_a_loop_over_the_tokens_of_the_mask(
    mask: Tensor, caps: tuple[float, float, float], trace_lambda: float, is_given: bool, seed: int
) -> None:
    log_rhos, rewards, values = (drawn_tokens(mask, seed + i, low=-2) for i in range(3))
    next_values, discounts = (drawn_tokens(mask, seed + 3 + i, low=0) for i in range(2))
    got = vtrace(
        log_rhos,
        rewards,
        values,
        next_values=next_values if is_given else None,
        discounts=discounts if is_given else 0.9,
        mask=mask,
        rho_cap=caps[0],
        c_cap=caps[1],
        pg_rho_cap=caps[2],
        trace_lambda=trace_lambda,
    )
    want = VTrace(torch.zeros(mask.shape, dtype=torch.float64), torch.zeros(mask.shape, dtype=torch.float64))
    for i, row in enumerate(mask):
        v = values[i][row].tolist()
        later = next_values[i][row].tolist() if is_given else [*v[1:], 0.0][: len(v)]
        gammas = discounts[i][row].tolist() if is_given else [0.9] * len(v)
        columns = log_rhos[i][row].tolist(), rewards[i][row].tolist(), v, later, gammas
        result = looped(*columns, caps=caps, trace_lambda=trace_lambda)
        for tokens, numbers in zip(want, result, strict=True):
            tokens[i, row] = torch.tensor(numbers, dtype=torch.float64)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float64
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-9)


@given(masks(), st.floats(0, 1), st.integers(0, 1000))
def test_on_policy_targets_are_n_step_returns(mask: Tensor, gamma: float, seed: int) -> None:
    rewards, values = drawn_tokens(mask, seed), drawn_tokens(mask, seed + 1)
    got = vtrace(torch.zeros_like(values), rewards, values, discounts=gamma, mask=mask)
    for i, row in enumerate(mask):
        r = rewards[i][row].tolist()
        returns = [sum(gamma**k * r[t + k] for k in range(len(r) - t)) for t in range(len(r))]
        assert torch.allclose(got.targets[i][row], torch.tensor(returns, dtype=torch.float64), rtol=1e-9, atol=1e-9)
        assert torch.allclose(got.advantages[i][row], got.targets[i][row] - values[i][row], rtol=1e-9, atol=1e-9)


def test_two_steps_by_hand() -> None:
    # ρ = 2 and 1/2, caps 1: δ = (1 + 0.5·4 − 2, ½·(3 − 4)) = (1, −0.5); c = (1, ½).
    got = vtrace(
        torch.tensor([[2.0, 0.5]]).log(), torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 4.0]]), discounts=0.5
    )
    assert got.targets.tolist() == [[2.75, 3.5]]
    assert got.advantages.tolist() == [[0.75, -0.5]]


@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_log_ratios_far_out_are_capped(far: float) -> None:
    ones = torch.ones(2, 50)
    got = vtrace(torch.full_like(ones, far), ones, torch.zeros_like(ones))
    want = 0.0 if far < 0 else 50.0
    assert got.targets[0, 0] == want and got.advantages[0, 0] == want


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1)])
def test_small_batches(shape: tuple[int, int]) -> None:
    for mask in (None, torch.zeros(shape, dtype=torch.bool)):
        got = vtrace(*(torch.ones(shape) for _ in range(3)), mask=mask, next_values=torch.ones(shape))
        assert got.targets.shape == got.advantages.shape == shape
        assert got.targets.tolist() == (torch.ones(shape) * (2.0 if mask is None else 0.0)).tolist()


def test_half_precision_gives_float32() -> None:
    inputs = [torch.ones(1, 2, dtype=torch.bfloat16) for _ in range(3)]
    assert vtrace(*inputs).targets.dtype == torch.float32
