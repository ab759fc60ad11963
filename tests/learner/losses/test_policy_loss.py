"""The policy loss against loops in plain Python, whatever is masked, chosen, weighted or split."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from async_rl.config.objective import Aggregation, KLConfig, KLEstimator, LossConfig, Surrogate
from learner.losses.policy_loss import PolicyLoss, PolicyTokens, policy_loss
from tests.learner.losses.draws import (
    Columns,
    batches,
    columns,
    kl_configs,
    loss_configs,
    pick,
    poisons,
    with_chosen,
)
from tests.learner.losses.naive import Token, naive_loss

every_surrogate = pytest.mark.parametrize("surrogate", list(Surrogate))


def loss_of(batch: Columns, config: LossConfig, kl: KLConfig, kl_coef: float) -> PolicyLoss:
    return policy_loss(batch.logprobs, batch.entropy, batch.tokens, config, kl, kl_coef=kl_coef)


def gradients(batch: Columns, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of log-probabilities and entropies, zeros where none is asked for."""
    loss.backward()
    assert batch.logprobs.grad is not None
    by_entropy = batch.entropy.grad
    return batch.logprobs.grad, torch.zeros_like(batch.entropy) if by_entropy is None else by_entropy


@settings(max_examples=300)
@given(batches(), loss_configs, kl_configs, st.sampled_from([0.0, 0.1]), poisons)
def test_loss_and_gradient_equal_a_plain_loop_whatever_the_mask_hides(
    rows: list[list[Token]], config: LossConfig, kl: KLConfig, kl_coef: float, poison: float
) -> None:
    batch = columns(rows, config, poison)
    want = naive_loss(with_chosen(rows, batch.tokens.selected), batch.tokens.row_scales.tolist(), config, kl, kl_coef)
    got = loss_of(batch, config, kl, kl_coef)
    assert float(got.loss.detach()) == pytest.approx(want.loss, rel=1e-9, abs=1e-9)
    by_logprob, by_entropy = gradients(batch, got.loss)
    for gradient, wanted in ((by_logprob, want.logprobs_gradient), (by_entropy, want.entropy_gradient)):
        torch.testing.assert_close(gradient, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@given(batches(min_rows=2), loss_configs, kl_configs, st.data())
def test_no_split_into_micro_batches_changes_loss_or_gradient(
    rows: list[list[Token]], config: LossConfig, kl: KLConfig, data: st.DataObject
) -> None:
    batch = columns(rows, config)
    whole = loss_of(batch, config, kl, 0.1).loss
    want = gradients(batch, whole)
    owners = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))))
    split = columns(rows, config)
    parts = [
        policy_loss(split.logprobs[own], split.entropy[own], pick(split.tokens, own), config, kl, kl_coef=0.1).loss
        for own in (owners == part for part in range(3))
    ]
    assert float(torch.stack(parts).sum().detach()) == pytest.approx(float(whole.detach()), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(gradients(split, torch.stack(parts).sum()), want, rtol=1e-9, atol=1e-9)


@every_surrogate
@pytest.mark.parametrize("aggregation", [a for a in Aggregation if a is not Aggregation.auto])
def test_every_surrogate_adds_up_row_by_row_under_every_aggregation(
    surrogate: Surrogate, aggregation: Aggregation
) -> None:
    """The same as above, but sure to meet every pair."""
    config = LossConfig(surrogate=surrogate, aggregation=aggregation, entropy_coef=0.01, cov_share=0.3)
    random = torch.Generator().manual_seed(0)
    numbers = torch.rand(5, 6, 6, generator=random, dtype=torch.float64).tolist()
    rows = [
        [
            Token(
                logprob=-a, proximal=-b, reference=-c, entropy=d, advantage=2 * e - 1, weight=f, kept=(i * j) % 3 != 1
            )
            for j, (a, b, c, d, e, f) in enumerate(row)
        ]
        for i, row in enumerate(numbers)
    ]
    whole, single = columns(rows, config), columns(rows, config)
    want = gradients(whole, loss_of(whole, config, KLConfig(), 0.1).loss)
    parts = [
        policy_loss(
            single.logprobs[i : i + 1],
            single.entropy[i : i + 1],
            pick(single.tokens, torch.tensor([i])),
            config,
            KLConfig(),
            kl_coef=0.1,
        ).loss
        for i in range(len(rows))
    ]
    torch.testing.assert_close(gradients(single, torch.stack(parts).sum()), want, rtol=1e-12, atol=1e-12)


@every_surrogate
@settings(max_examples=25)
@given(rows=batches(), poison=poisons)
def test_float32_stays_finite_and_right_for_any_ratio(
    surrogate: Surrogate, rows: list[list[Token]], poison: float
) -> None:
    config = LossConfig(surrogate=surrogate, aggregation=Aggregation.seq_mean_token_mean, clip_cov_low=-1e9)
    batch = columns(rows, config, poison)
    want = loss_of(batch, config, KLConfig(), 0.1).loss
    exact = gradients(batch, want)[0]
    said = batch.tokens
    assert said.weights is not None and said.reference_logprobs is not None
    logprobs = batch.logprobs.detach().float().requires_grad_()
    rounded = PolicyTokens(
        mask=said.mask,
        row_scales=said.row_scales,
        advantages=said.advantages.float(),
        weights=said.weights.float(),
        proximal_logprobs=said.proximal_logprobs.float(),
        reference_logprobs=said.reference_logprobs.float(),
        selected=said.selected,
    )
    got = policy_loss(logprobs, batch.entropy.float(), rounded, config, KLConfig(), kl_coef=0.1).loss
    got.backward()
    assert got.isfinite()
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()
    # Decisions at a bound may fall otherwise in float32; drawn numbers that are at none agree.
    if not near_a_bound(rows, config):
        torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logprobs.grad.double(), exact, rtol=1e-4, atol=1e-5)


def near_a_bound(rows: list[list[Token]], config: LossConfig) -> bool:
    """Whether rounding may decide about a clip; log-probabilities of −1e4 are known to 1e-3 in float32."""
    bounds = (1 - config.clip_low, 1 + config.clip_high, config.clip_dual, config.ratio_cap)
    kept = [[t for t in row if t.kept] for row in rows]
    means = [math.exp(min(sum(t.d for t in row) / len(row), 10.0)) for row in kept if row]
    ratios = [t.r for row in kept for t in row] + means
    moves = [m for row in kept for t in row for m in (math.exp(t.logprob) - math.exp(t.proximal), t.d)]
    is_odd = any(abs(t.logprob) > 100 or abs(t.proximal) > 100 or abs(t.reference) > 100 for row in kept for t in row)
    return (
        is_odd
        or any(abs(r - bound) < 1e-3 for r in ratios for bound in bounds)
        or any(abs(abs(m) - bound) < 1e-3 for m in moves for bound in (config.clip_low, config.clip_high))
        or config.surrogate is Surrogate.dppo_kl
    )


@every_surrogate
def test_half_precision_is_raised_before_any_arithmetic(surrogate: Surrogate) -> None:
    config = LossConfig(surrogate=surrogate, cov_share=0.5)
    random = torch.Generator().manual_seed(1)
    logprobs = -torch.rand(3, 4, generator=random).bfloat16()
    mask = torch.tensor([[True] * 4, [True, False, True, True], [False] * 4])
    said = PolicyTokens(
        mask=mask,
        row_scales=torch.full((3,), 0.1, dtype=torch.float64),
        advantages=torch.randn(3, 4, generator=random).bfloat16(),
        weights=torch.rand(3, 4, generator=random).bfloat16(),
        proximal_logprobs=-torch.rand(3, 4, generator=random).bfloat16(),
        selected=mask if surrogate in (Surrogate.clip_cov, Surrogate.kl_cov) else None,
    )
    half, full = logprobs.clone().requires_grad_(), logprobs.float().requires_grad_()
    losses = [policy_loss(x, None, said, config, KLConfig()).loss for x in (half, full)]
    for loss in losses:
        loss.backward()
    assert half.grad is not None and full.grad is not None
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(half.grad, full.grad.bfloat16())


@every_surrogate
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1), (1, 4), (4, 1)])
@pytest.mark.parametrize("is_kept", [False, True])
def test_batches_of_any_shape_have_a_finite_loss_and_gradient(
    surrogate: Surrogate, shape: tuple[int, int], is_kept: bool
) -> None:
    mask = torch.full(shape, is_kept)
    logprobs = torch.full(shape, -1.0 if is_kept else math.nan).requires_grad_()
    said = PolicyTokens(
        mask=mask,
        row_scales=torch.ones(shape[0], dtype=torch.float64),
        advantages=torch.full(shape, 0.5),
        weights=None,
        proximal_logprobs=torch.full(shape, -1.0),
        selected=mask if surrogate in (Surrogate.clip_cov, Surrogate.kl_cov) else None,
    )
    got = policy_loss(logprobs, None, said, LossConfig(surrogate=surrogate), KLConfig())
    got.loss.backward()
    assert got.loss.isfinite() and (is_kept or float(got.loss.detach()) == 0)
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()
    assert is_kept or not logprobs.grad.any()
    assert all(column.shape == shape for column in (*got.surrogate, got.entropy, got.reference_kl))


def test_reports_are_zero_outside_of_the_mask_and_carry_no_gradient() -> None:
    row = [
        Token(logprob=-1.0, proximal=-2.0, reference=-1.5, entropy=0.7, advantage=1.0, weight=1.0, kept=True),
        Token(logprob=0.0, proximal=0.0, reference=0.0, entropy=0.0, advantage=0.0, weight=0.0, kept=False),
    ]
    config = LossConfig()
    got = loss_of(columns([row], config, math.nan), config, KLConfig(), 0.1)
    assert got.surrogate.ratios.tolist() == [[pytest.approx(math.e), 1.0]]
    assert got.surrogate.clipped_high.tolist() == [[True, False]]
    assert not got.surrogate.clipped_low.any() and not got.surrogate.clipped_dual.any()
    assert got.log_ratio_sums.tolist() == [1.0]
    assert got.reference_kl.tolist() == [[pytest.approx(math.expm1(-0.5) + 0.5), 0.0]]
    assert float(got.entropy[0, 0]) == 0.7
    assert not any(x.requires_grad for x in (*got.surrogate, got.log_ratio_sums, got.entropy, got.reference_kl))


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    rows = [
        [
            Token(logprob=-1.0, proximal=-1.0, reference=0.0, entropy=0.5, advantage=2.0, weight=1.0, kept=True),
            Token(logprob=-2.0, proximal=-2.0, reference=0.0, entropy=0.5, advantage=-1.0, weight=0.5, kept=True),
        ]
    ]
    config = LossConfig(aggregation=Aggregation.token_mean)
    batch = columns(rows, config)
    assert gradients(batch, loss_of(batch, config, KLConfig(), 0.0).loss)[0].tolist() == [[-2.0 / 2, 1.0 * 0.5 / 2]]


def test_an_exact_kl_counts_with_its_own_gradient() -> None:
    rows = [[Token(logprob=-1.0, proximal=-1.0, reference=0.0, entropy=0.0, advantage=0.0, weight=1.0, kept=True)]]
    config, kl = LossConfig(aggregation=Aggregation.token_mean), KLConfig(estimator=KLEstimator.full)
    batch = columns(rows, config)
    exact_kl = torch.tensor([[0.25]], dtype=torch.float64, requires_grad=True)
    got = policy_loss(batch.logprobs, None, batch.tokens, config, kl, kl_coef=2.0, exact_kl=exact_kl)
    got.loss.backward()
    assert (float(got.loss.detach()), float(got.reference_kl)) == (0.5, 0.25)
    assert exact_kl.grad is not None and exact_kl.grad.tolist() == [[2.0]]


def test_a_kl_in_the_reward_is_reported_and_not_in_the_loss() -> None:
    rows = [[Token(logprob=-1.0, proximal=-1.0, reference=-3.0, entropy=0.0, advantage=0.0, weight=1.0, kept=True)]]
    config = LossConfig()
    batch = columns(rows, config)
    got = loss_of(batch, config, KLConfig(estimator=KLEstimator.k1), 0.0)
    assert (float(got.loss.detach()), got.reference_kl.tolist()) == (0.0, [[2.0]])


def test_terms_that_lack_their_input_are_refused() -> None:
    rows = [[Token(logprob=-1.0, proximal=-1.0, reference=0.0, entropy=0.0, advantage=0.0, weight=1.0, kept=True)]]
    batch = columns(rows, LossConfig())
    with pytest.raises(AssertionError, match="entropy bonus"):
        policy_loss(batch.logprobs, None, batch.tokens, LossConfig(entropy_coef=0.1), KLConfig())
    with pytest.raises(AssertionError, match="what estimates it"):
        kl = KLConfig(estimator=KLEstimator.full)
        policy_loss(batch.logprobs, None, batch.tokens, LossConfig(), kl, kl_coef=0.1)
