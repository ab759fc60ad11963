"""KL estimates: their values far off, their gradients, and what they take from rewards."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_rl.config.objective import KLEstimator
from correction.ratios import log_difference
from learner.losses.kl import K3_BOUND, KL_ESTIMATORS, kl_in_reward, straight_through
from tests.learner.losses.draws import log_ratios, poisons

every_estimator = pytest.mark.parametrize("name", KL_ESTIMATORS)


def test_every_word_of_the_config_but_full_is_in_the_table() -> None:
    assert set(KL_ESTIMATORS) == {word.value for word in KLEstimator} - {"full"}


@every_estimator
@given(values=st.lists(log_ratios, min_size=1, max_size=8))
def test_any_distance_has_a_finite_estimate_and_gradient(name: str, values: list[float]) -> None:
    for function in (KL_ESTIMATORS[name], straight_through(KL_ESTIMATORS[name])):
        d = torch.tensor(values, requires_grad=True)
        kl = function(d)
        kl.sum().backward()
        assert kl.isfinite().all() and d.grad is not None and d.grad.isfinite().all()


@every_estimator
@given(values=st.lists(log_ratios, min_size=1, max_size=8))
def test_straight_through_keeps_the_value_exactly_and_pulls_by_the_distance(name: str, values: list[float]) -> None:
    d = torch.tensor(values, requires_grad=True)
    kl = straight_through(KL_ESTIMATORS[name])(d)
    kl.sum().backward()
    assert torch.equal(kl.detach(), KL_ESTIMATORS[name](d.detach()))
    assert d.grad is not None and torch.equal(d.grad, d.detach())


def test_k3_has_no_gradient_beyond_its_bound_and_straight_through_it_has() -> None:
    far = torch.tensor([-5.0], requires_grad=True)
    assert float(KL_ESTIMATORS["k3"](far).detach()) == K3_BOUND
    assert torch.autograd.grad(KL_ESTIMATORS["k3"](far).sum(), far)[0].tolist() == [0.0]
    assert torch.autograd.grad(straight_through(KL_ESTIMATORS["k3"])(far).sum(), far)[0].tolist() == [-5.0]


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_the_mean_under_the_policy_is_the_kl(name: str) -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.2, 0.3])
    exact = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * KL_ESTIMATORS[name]((p / q).log())).sum(), exact)


@every_estimator
def test_straight_through_the_mean_gradient_is_that_of_the_kl(name: str) -> None:
    logits = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    log_q = torch.tensor([0.5, 0.2, 0.3]).log()
    log_p = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), logits, retain_graph=True)
    estimates = straight_through(KL_ESTIMATORS[name])(log_p - log_q)
    (mean,) = torch.autograd.grad((log_p.exp().detach() * estimates).sum(), logits)
    torch.testing.assert_close(mean, exact)


@given(poisons)
def test_what_is_masked_has_no_kl_and_no_gradient(poison: float) -> None:
    logprobs = torch.tensor([[-1.0, poison]], requires_grad=True)
    d = log_difference(logprobs, torch.tensor([[-2.0, poison]]), torch.tensor([[True, False]]))
    d.exp().sum().backward()
    assert d.tolist() == [[1.0, 0.0]]
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[pytest.approx(math.e), 0.0]]


@given(poisons)
def test_the_reward_loses_the_kl_and_empty_rows_do_not_count_in_its_mean(poison: float) -> None:
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    got = kl_in_reward(
        torch.tensor([[0.0, 1.0], [2.0, poison], [poison, poison]]),
        torch.tensor([[-1.0, -1.0], [-1.0, poison], [poison, poison]], requires_grad=True),
        torch.tensor([[-2.0, -4.0], [-1.5, poison], [poison, poison]]),
        mask,
        estimator="k1",
        coef=0.5,
    )
    assert got.token_rewards.tolist() == [[-0.5, -0.5], [1.75, 0.0], [0.0, 0.0]]
    assert float(got.kl_mean) == (2.0 + 0.5) / 2
    assert not got.token_rewards.requires_grad


def test_nothing_to_reward_has_a_mean_of_0() -> None:
    nothing = torch.full((2, 3), math.nan)
    got = kl_in_reward(nothing, nothing, nothing, torch.zeros(2, 3, dtype=torch.bool), estimator="k3", coef=0.1)
    assert float(got.kl_mean) == 0 and not got.token_rewards.any()
