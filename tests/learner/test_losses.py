"""The policy loss: golden vectors, a plain loop in float64, split invariance, and masks that hold."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.schema import ObjectiveConfig
from correction.ratios import log_ratio
from learner.losses import KL_ESTIMATORS, PolicyTokens, policy_loss, token_mean
from tests.golden import Golden, golden_cases, golden_differences

PPO_CASES = [*golden_cases("policy_loss", "ppo_clip"), *golden_differences("policy_loss", "ppo_clip")]
TOKEN_MEAN_CASES = [
    # Elsewhere the number of tokens is given, here it is counted.
    case
    for case in (*golden_cases("aggregation", "token-mean"), *golden_differences("aggregation", "token-mean"))
    if not {"dp_size", "batch_num_tokens"} & set(case.options)
]


def coefficients(options: dict[str, object], mask: Tensor) -> Tensor:
    """What each of the modes of the golden vectors makes of a token: [B, T] float64."""
    m, agg = mask.double(), options["agg"]
    num_rows = options.get("global_batch_size", int(mask.any(1).sum()))
    assert isinstance(num_rows, int)
    per_row = m / max(1, num_rows)
    by_mode = {
        "token-mean": m / float(str(options.get("batch_num_tokens", max(1, int(mask.sum()))))),
        "token-sum": m,
        "seq-mean-token-sum": per_row,
        "seq-mean-token-sum-norm": per_row / float(str(options.get("loss_scale_factor", mask.shape[1]))),
        "seq-mean-token-mean": per_row / m.sum(1, keepdim=True).clamp(min=1),
    }
    return by_mode[str(agg)] * float(str(options.get("dp_size", 1)))


@pytest.mark.parametrize("case", PPO_CASES, ids=repr)
def test_ppo_clip_is_golden(case: Golden) -> None:
    mask = case.input("mask")
    logprobs = case.input("logprobs").requires_grad_()
    tokens = PolicyTokens(
        mask=mask.flatten(),
        coefficients=coefficients(case.options, mask).flatten(),
        advantages=case.input("advantages").flatten(),
        weights=case.input("is_weights").flatten() if case.has_input("is_weights") else torch.ones(mask.numel()),
        proximal_logprobs=case.input("old_logprobs").flatten(),
    )
    objective = ObjectiveConfig(
        clip_low=case.options["clip_low"], clip_high=case.options["clip_high"], clip_dual=case.options["dual_clip"]
    )
    got = policy_loss(logprobs.flatten(), torch.zeros(mask.numel()), tokens, objective)
    got.loss.backward()
    case.check_scalar("loss", got.loss)
    assert logprobs.grad is not None
    case.check("grad_logprobs", logprobs.grad)
    if "pg_clipfrac" in case.scalars:
        num_tokens = mask.sum()
        clipped = got.surrogate.clipped_low | got.surrogate.clipped_high
        case.check_scalar("pg_clipfrac", clipped.sum() / num_tokens)
        case.check_scalar("pg_clipfrac_lower", got.surrogate.clipped_dual.sum() / num_tokens)


@pytest.mark.parametrize("case", golden_cases("kl", "k3"), ids=repr)
def test_k3_is_golden(case: Golden) -> None:
    logprobs = case.input("logprobs").requires_grad_()
    everywhere = torch.ones_like(logprobs, dtype=torch.bool)
    kl = KL_ESTIMATORS["k3"](log_ratio(logprobs, case.input("ref_logprobs"), everywhere))
    kl.sum().backward()
    case.check("kl", kl)
    assert logprobs.grad is not None
    case.check("grad_logprobs", logprobs.grad)


@pytest.mark.parametrize("case", TOKEN_MEAN_CASES, ids=repr)
def test_token_mean_is_golden(case: Golden) -> None:
    loss_mat, mask = case.input("loss_mat").flatten(), case.input("mask").flatten()
    weights = token_mean(mask, torch.zeros_like(mask, dtype=torch.int64))
    case.check_scalar("loss", (weights * torch.where(mask, loss_mat, 0.0)).sum())


def test_there_are_golden_cases() -> None:
    assert (len(PPO_CASES), len(golden_cases("kl", "k3")), len(TOKEN_MEAN_CASES)) == (10, 1, 3)


Token = tuple[float, float, float, float, float, float, bool]
token = st.tuples(
    st.floats(-1e4, 0),  # logprobs
    st.floats(-1e4, 0),  # proximal
    st.floats(-1e4, 0),  # reference
    st.floats(0, 10),  # entropy
    st.floats(-3, 3),  # advantage
    st.floats(0, 5),  # weight
    st.booleans(),  # mask
)
objectives = st.builds(
    ObjectiveConfig,
    clip_low=st.floats(0, 1),
    clip_high=st.floats(0, 1),
    clip_dual=st.sampled_from([0.0, 1.5, 3.0]),
    entropy_coef=st.sampled_from([0.0, 0.01]),
    kl_coef=st.just(0.1),
)


def plain_loss(row: list[Token], objective: ObjectiveConfig) -> float:
    """The loss as one would write it by hand."""
    total, num_tokens = 0.0, sum(kept for *_, kept in row)
    for logprob, proximal, reference, entropy, advantage, weight, kept in row:
        if not kept:
            continue
        r = math.exp(max(-20.0, min(20.0, logprob - proximal)))
        loss = max(-advantage * r, -advantage * min(max(r, 1 - objective.clip_low), 1 + objective.clip_high))
        if advantage < 0 and objective.clip_dual > 0:
            loss = min(loss, -advantage * objective.clip_dual)
        d = max(-20.0, min(20.0, logprob - reference))
        kl = min(math.exp(-d) + d - 1, 10.0)
        total += weight * loss - objective.entropy_coef * entropy + objective.kl_coef * kl
    return total / max(1, num_tokens)


def columns(row: list[Token], poison: float) -> tuple[Tensor, Tensor, PolicyTokens]:
    """The row as tensors, with `poison` wherever the mask is off."""
    mask = torch.tensor([kept for *_, kept in row])
    parts = [torch.tensor([x[i] if x[6] else poison for x in row], dtype=torch.float64) for i in range(6)]
    tokens = PolicyTokens(
        mask=mask,
        coefficients=token_mean(mask, torch.zeros_like(mask, dtype=torch.int64)),
        proximal_logprobs=parts[1],
        reference_logprobs=parts[2],
        advantages=parts[4],
        weights=parts[5],
    )
    return parts[0].requires_grad_(), parts[3].requires_grad_(), tokens


@given(st.lists(token, min_size=1, max_size=16), objectives, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_the_loss_equals_a_plain_loop_whatever_the_mask_hides(
    row: list[Token], objective: ObjectiveConfig, poison: float
) -> None:
    logprobs, entropy, tokens = columns(row, poison)
    got = policy_loss(logprobs, entropy, tokens, objective)
    assert float(got.loss.detach()) == pytest.approx(plain_loss(row, objective), rel=1e-9, abs=1e-9)
    got.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert (logprobs.grad[~tokens.mask] == 0).all()


@given(st.lists(token, min_size=2, max_size=16), objectives, st.data())
def test_any_split_into_micro_batches_has_the_same_loss_and_gradient(
    row: list[Token], objective: ObjectiveConfig, data: st.DataObject
) -> None:
    logprobs, entropy, tokens = columns(row, math.nan)
    whole = policy_loss(logprobs, entropy, tokens, objective).loss
    (gradient,) = torch.autograd.grad(whole, logprobs)
    cut = data.draw(st.integers(1, len(row) - 1))
    parts = [
        policy_loss(logprobs[piece], entropy[piece], sliced(tokens, piece), objective).loss
        for piece in (slice(0, cut), slice(cut, None))
    ]
    together = parts[0] + parts[1]
    (split_gradient,) = torch.autograd.grad(together, logprobs)
    assert float(together.detach()) == pytest.approx(float(whole.detach()), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(split_gradient, gradient, rtol=1e-9, atol=1e-9)


def sliced(tokens: PolicyTokens, piece: slice) -> PolicyTokens:
    reference = tokens.reference_logprobs
    assert reference is not None
    return PolicyTokens(
        mask=tokens.mask[piece],
        coefficients=tokens.coefficients[piece],
        advantages=tokens.advantages[piece],
        weights=tokens.weights[piece],
        proximal_logprobs=tokens.proximal_logprobs[piece],
        reference_logprobs=reference[piece],
    )


def test_nothing_to_train_is_zero_with_a_zero_gradient() -> None:
    logprobs, entropy, tokens = columns([(-1.0, -1.0, -1.0, 1.0, 1.0, 1.0, False)], math.nan)
    got = policy_loss(logprobs, entropy, tokens, ObjectiveConfig(kl_coef=0.1))
    got.loss.backward()
    assert float(got.loss.detach()) == 0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0]


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    row: list[Token] = [(-1.0, -1.0, -1.0, 0.5, 2.0, 1.0, True), (-2.0, -2.0, -2.0, 0.5, -1.0, 0.5, True)]
    logprobs, entropy, tokens = columns(row, 0.0)
    policy_loss(logprobs, entropy, replace(tokens, reference_logprobs=None), ObjectiveConfig()).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-2.0 / 2, 1.0 * 0.5 / 2]


@pytest.mark.parametrize(
    ("log_ratio_", "advantage", "flags"),
    [
        (0.5, 1.0, (False, True, False)),
        (-0.5, -1.0, (True, False, False)),
        (2.0, -1.0, (False, False, True)),
        (0.5, -1.0, (False, False, False)),
        (-0.5, 1.0, (False, False, False)),
        (5.0, 0.0, (False, False, False)),
    ],
)
def test_each_clip_binds_where_it_should(log_ratio_: float, advantage: float, flags: tuple[bool, bool, bool]) -> None:
    row: list[Token] = [(-7.0 + log_ratio_, -7.0, -7.0, 0.0, advantage, 1.0, True)]
    logprobs, entropy, tokens = columns(row, 0.0)
    surrogate = policy_loss(logprobs, entropy, tokens, ObjectiveConfig()).surrogate
    assert (bool(surrogate.clipped_low), bool(surrogate.clipped_high), bool(surrogate.clipped_dual)) == flags
