"""Losses, KL and value loss against golden vectors, values and gradients.

Those of bypass mode are `tests.golden`'s: rejection and weights come first there.
"""

import pytest
import torch

from async_rl.config.objective import KLConfig
from async_rl.config.objective import KLController as KLControllerName
from correction.masked import masked_mean
from learner.kl_controller import KL_CONTROLLERS
from learner.losses.kl import KL_ESTIMATORS, kl_in_reward, straight_through
from learner.losses.value import value_loss
from tests.golden import Golden, golden_cases, golden_differences
from tests.learner.losses.objectives import golden_loss, row_scales

SURROGATES = ("ppo_clip", "gspo", "gmpo", "sapo", "cispo", "reinforce", "gpg", "kl_cov", "dppo_tv", "dppo_kl", "dro")


def all_cases(kind: str, *names: str) -> list[Golden]:
    return [*golden_cases(kind, *names), *golden_differences(kind, *names)]


def test_there_are_golden_cases() -> None:
    kinds = ("aggregation", "kl", "kl_in_reward", "value_loss")
    assert len(golden_cases("policy_loss", *SURROGATES)) == 59
    assert [len(golden_cases(kind)) for kind in kinds] == [15, 8, 4, 6]


@pytest.mark.parametrize("case", all_cases("policy_loss", *SURROGATES), ids=repr)
def test_policy_loss_is_golden(case: Golden) -> None:
    mask, logprobs = case.input("mask"), case.input("logprobs").requires_grad_()
    got = golden_loss(case, logprobs, mask, case.input("is_weights") if case.has_input("is_weights") else None)
    got.loss.backward()
    said, num_tokens = got.surrogate, mask.sum().clamp(min=1)
    clipped_low_and_high = (said.clipped_low | said.clipped_high).sum() / num_tokens
    dual = said.clipped_dual.sum() / num_tokens
    if case.name == "gmpo":
        clipped_low_and_high, dual = said.clipped_high.sum() / num_tokens, said.clipped_low.sum() / num_tokens
    kl = -got.log_ratio_sums.sum() / num_tokens
    if case.name == "kl_cov":
        kl = masked_mean((logprobs.detach() - case.input("old_logprobs")).abs(), mask)
    assert logprobs.grad is not None
    ours = {
        "loss": got.loss,
        "grad_logprobs": logprobs.grad,
        "pg_clipfrac": clipped_low_and_high,
        "pg_clipfrac_lower": dual,
        "ppo_kl": kl,
    }
    for name in case.wanted():
        case.check(name, ours[name])
    assert not case.unasked()


@pytest.mark.parametrize("case", all_cases("aggregation"), ids=repr)
def test_aggregations_are_golden(case: Golden) -> None:
    mask, losses = case.input("mask"), case.input("loss_mat")
    pieces = case.input("micro_batch") if case.has_input("micro_batch") else torch.zeros(len(mask), dtype=torch.int64)
    scales = row_scales(case, mask, "")
    loss, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(losses)
    for piece in pieces.unique():
        rows = pieces == piece
        own = losses[rows].requires_grad_()
        share = (torch.where(mask[rows], own, 0.0).sum(1) * scales[rows]).sum()
        share.backward()
        assert own.grad is not None
        loss, gradient[rows] = loss + share.detach(), own.grad
    case.check("loss", loss)
    if "grad_loss_mat" in case.wanted():
        case.check("grad_loss_mat", gradient)


@pytest.mark.parametrize("case", all_cases("kl"), ids=repr)
def test_kl_estimators_are_golden(case: Golden) -> None:
    logprobs = case.input("logprobs").requires_grad_()
    name = case.name.removesuffix("+")
    function = KL_ESTIMATORS[name] if name == case.name else straight_through(KL_ESTIMATORS[name])
    kl = function(logprobs - case.input("ref_logprobs"))
    kl.sum().backward()
    case.check("kl", kl)
    assert logprobs.grad is not None
    case.check("grad_logprobs", logprobs.grad)


@pytest.mark.parametrize("case", all_cases("kl_in_reward"), ids=repr)
def test_kl_in_reward_is_golden(case: Golden) -> None:
    mask, coef = case.input("mask"), case.option("kl_coef")
    got = kl_in_reward(
        case.input("scores"),
        case.input("old_logprobs"),
        case.input("ref_logprobs"),
        mask,
        estimator=case.option("estimator"),
        coef=coef,
    )
    config = KLConfig(
        coef=coef,
        controller=KLControllerName(case.option("controller")),
        target=case.option("target_kl", 1.0),
        horizon=case.option("horizon", 1),
    )
    controller = KL_CONTROLLERS[config.controller](config).after(float(got.kl_mean), len(mask))
    ours = {"rewards": got.token_rewards, "kl_mean": got.kl_mean, "kl_coef_next": torch.tensor(controller.coef)}
    for name in case.wanted():
        case.check(name, ours[name])


@pytest.mark.parametrize("case", all_cases("value_loss"), ids=repr)
def test_value_loss_is_golden(case: Golden) -> None:
    mask, values = case.input("mask"), case.input("vpreds").requires_grad_()
    got = value_loss(
        values,
        case.input("returns"),
        case.input("values"),
        mask,
        row_scales(case, mask, ""),
        clip=case.option("clip_value"),
    )
    got.loss.backward()
    assert values.grad is not None
    case.check("loss", got.loss)
    case.check("grad_vpreds", values.grad)
    case.check("vf_clipfrac", got.clipped.sum() / mask.sum())
