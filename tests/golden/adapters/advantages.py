"""Cases of the kinds `advantage`, `whiten` and `gae_discounts`, through `learner/advantages/`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from async_rl.config.objective import AdvantageConfig
from learner.advantages import group_relative, token_baseline
from learner.advantages.critic import lambda_advantages
from learner.advantages.inputs import AdvantageInputs, Advantages
from learner.advantages.table import ADVANTAGES
from learner.advantages.whitening import whiten
from tests.golden.folder import Golden

Outputs = Mapping[str, float | Tensor]

OURS = {
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
    "otb": "optimal_token_baseline",
    "tir_otb": "tir_optimal_token_baseline",
}
"""Estimators that have another name here."""

TOKEN_BASELINES = {
    "optimal_token_baseline": token_baseline.optimal_token_baseline,
    "tir_optimal_token_baseline": token_baseline.tir_optimal_token_baseline,
}


def advantage(case: Golden) -> Outputs:
    """An estimator."""
    inputs, config = _inputs(case), _config(case)
    result = _call(case, OURS.get(case.name, case.name), inputs, config)
    return {"advantages": result.advantages} | ({} if result.returns is None else {"returns": result.returns})


def whitening(case: Golden) -> Outputs:
    """Mean 0 and variance 1."""
    return {"whitened": whiten(case.input("values"), case.input("mask"), shift_mean=case.option("shift_mean", True))}


def gae_discounts(case: Golden) -> Outputs:
    """GAE without mask and whitening; `gamma` says how the discounts, which are an input, were made."""
    case.ignore("gamma")
    values = case.input("values_with_bootstrap")
    advantages = lambda_advantages(
        case.input("rewards"),
        values[:, :-1],
        discounts=case.input("discounts"),
        trace_lambda=case.option("lambda", 1.0),
        bootstrap=values[:, -1],
    )
    return {"advantages": advantages}


def _inputs(case: Golden) -> AdvantageInputs:
    mask = case.input("mask")

    def given(role: str) -> Tensor | None:
        return case.input(role) if case.has_input(role) else None

    # Without groups, every row is its own; without token rewards, there are component scores.
    return AdvantageInputs(
        mask=mask,
        token_rewards=case.input("rewards") if case.has_input("rewards") else torch.zeros(mask.shape),
        groups=case.input("groups").long() if case.has_input("groups") else torch.arange(len(mask)),
        values=given("values"),
        baseline_rewards=given("reward_baselines"),
        component_rewards=given("component_scores"),
        proximal_logprobs=given("old_logprobs"),
        sum_pi_squared=given("sum_pi_squared"),
        weights=given("is_weights"),
    )


def _config(case: Golden) -> AdvantageConfig:
    defaults = AdvantageConfig()
    return AdvantageConfig(
        normalize_by_std=case.option("norm_by_std", defaults.normalize_by_std),
        gamma=case.option("gamma", defaults.gamma),
        trace_lambda=case.option("lambda", defaults.trace_lambda),
        reward_weights=case.option("component_weights", []),
    )


def _call(case: Golden, name: str, inputs: AdvantageInputs, config: AdvantageConfig) -> Advantages:
    """The estimator, with keywords that no config has; an `eps` other than ours fails the case."""
    match name:
        case "gpg":
            return group_relative.gpg(inputs, config, f_norm=case.option("f_norm", 1.0))
        case "optimal_token_baseline" | "tir_optimal_token_baseline":
            _require_eps(case, token_baseline.EPS)
            return TOKEN_BASELINES[name](inputs, config, zero_tail=case.option("zero_tail", True))
        case "grpo" | "grpo_passk" | "gdpo":
            _require_eps(case, group_relative.EPS)
    return ADVANTAGES[name].function(inputs, config)


def _require_eps(case: Golden, ours: float) -> None:
    eps = case.option("eps", ours)
    assert eps == ours, f"eps is {ours} here, not {eps}"
