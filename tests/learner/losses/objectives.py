"""What golden vectors call the parts of the loss, in our words; shared by the tests of losses.

Legend: N sequences (one a row), T response positions.
"""

from typing import Any

import torch
from torch import Tensor

from async_rl.config.objective import KLConfig, LossConfig
from async_rl.config.objective import Surrogate as SurrogateName
from learner.losses.aggregation import AGGREGATIONS, BatchTotals
from learner.losses.policy_loss import PolicyLoss, PolicyTokens, policy_loss
from learner.losses.table import SURROGATES
from tests.golden import Golden

OPTIONS = {
    "clip_low": "clip_low",
    "clip_high": "clip_high",
    "dual_clip": "clip_dual",
    "ratio_cap": "ratio_cap",
    "tau_pos": "tau_positive",
    "tau_neg": "tau_negative",
    "kl_cov_ratio": "cov_share",
    "ppo_kl_coef": "kl_cov_coef",
    "beta": "dro_beta",
}
"""Theirs → ours."""


def loss_config(case: Golden) -> LossConfig:
    """The options of a policy_loss case."""
    name = case.name.removeprefix("bypass_")
    options: dict[str, Any] = {ours: case.option(theirs) for theirs, ours in OPTIONS.items() if theirs in case.options}
    return LossConfig(surrogate=SurrogateName(name), **options)


def row_scales(case: Golden, mask: Tensor, default: str) -> Tensor:
    """[N] float64 of the case's aggregation; its gradients are averaged over `dp_size` ranks afterwards."""
    name = str(case.option("agg", default)).replace("-", "_")
    totals = BatchTotals.of(mask, float(case.option("loss_scale_factor", mask.shape[1])))
    totals = BatchTotals(
        num_tokens=case.option("batch_num_tokens", totals.num_tokens),
        num_sequences=case.option("global_batch_size", totals.num_sequences),
        length_norm=totals.length_norm,
    )
    return AGGREGATIONS[name](mask, totals) * float(case.option("dp_size", 1))


def golden_loss(case: Golden, logprobs: Tensor, mask: Tensor, weights: Tensor | None) -> PolicyLoss:
    """The policy loss of a case under a mask and weights that may be corrected already."""
    config = loss_config(case)
    kind = SURROGATES[config.surrogate]
    advantages, proximal = case.input("advantages"), case.input("old_logprobs")
    selected = None
    if kind.select is not None:
        log_ratios = logprobs.detach() - proximal
        selected = kind.select(logprobs, advantages, mask, log_ratios, config, torch.Generator())
    tokens = PolicyTokens(
        mask=mask,
        row_scales=row_scales(case, mask, kind.aggregation),
        advantages=advantages,
        weights=weights,
        proximal_logprobs=proximal,
        selected=selected,
    )
    return policy_loss(logprobs, None, tokens, config, KLConfig())
