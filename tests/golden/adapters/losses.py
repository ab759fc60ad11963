"""Cases of the kinds `policy_loss`, `aggregation`, `value_loss` and `from_logits`, through `learner/losses/`.

A peer's `dp_size` undoes the mean over ranks that its gradients go through; ours are summed, so it is a factor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from async_rl.config.objective import KLConfig, LossConfig, Surrogate
from correction.correction import correct
from correction.masked import masked_mean, masked_share
from learner.losses.aggregation import AGGREGATIONS, BatchTotals
from learner.losses.policy_loss import PolicyLoss, PolicyTokens, policy_loss
from learner.losses.table import SURROGATES
from learner.losses.value import value_loss
from learner.output_layer import OutputLayer
from learner.token_scores import score_tokens
from learner.vocabulary import VocabularyShard
from tests.golden.adapters.correction import correction_of, outputs_of
from tests.golden.folder import Golden

Outputs = Mapping[str, float | Tensor]

CONFIG_FIELDS = {
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
"""A case's option → ours."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How tokens add up."""

    row_scales: Tensor
    factor: float
    """The peer's ranks."""

    @classmethod
    def of(cls, case: Golden, mask: Tensor, default: str) -> "Scaling":
        """Counts of a mini-batch that the case is a part of are options, else they are of the mask."""
        own = BatchTotals.of(mask, case.option("loss_scale_factor") or mask.shape[1])
        totals = BatchTotals(
            num_tokens=case.option("batch_num_tokens") or own.num_tokens,
            num_sequences=case.option("global_batch_size") or own.num_sequences,
            length_norm=own.length_norm,
        )
        name = case.option("agg", default).replace("-", "_")
        return cls(row_scales=AGGREGATIONS[name](mask, totals), factor=case.option("dp_size", 1))


def surrogate_loss(case: Golden) -> Outputs:
    """A surrogate, or after `bypass_` one that corrects for μ in the place of π_prox."""
    mask, proximal = case.input("mask"), case.input("old_logprobs")
    weights = case.input("is_weights") if case.has_input("is_weights") else None
    corrected: dict[str, float | Tensor] = {}
    name = case.name.removeprefix("bypass_")
    if name != case.name:
        result = correct(case.input("logprobs"), proximal, mask, correction_of(case))
        mask, corrected = result.mask, outputs_of(result)
        # PPO's clip sees π/μ already, so that there is no weight.
        weights = result.weights if name == "reinforce" else None
    logprobs = case.input("logprobs").requires_grad_()
    scaling = Scaling.of(case, mask, SURROGATES[name].aggregation)
    config = _config(case, Surrogate(name))
    tokens = PolicyTokens(
        mask=mask,
        row_scales=scaling.row_scales,
        advantages=case.input("advantages"),
        weights=weights,
        proximal_logprobs=proximal,
        selected=_selected(logprobs.detach(), case.input("advantages"), mask, proximal, config),
    )
    loss = policy_loss(logprobs, None, tokens, config, KLConfig())
    (gradient,) = torch.autograd.grad(loss.loss, logprobs)
    return {
        **corrected,
        "loss": scaling.factor * loss.loss,
        "grad_logprobs": scaling.factor * gradient,
        **_metrics(loss, mask, config),
    }


def aggregation(case: Golden) -> Outputs:
    """Losses of tokens added up: those of `reinforce` are log π for advantages of −1."""
    mask, losses = case.input("mask"), case.input("loss_mat").requires_grad_()
    scaling = Scaling.of(case, mask, "token_mean")
    parts = case.input("micro_batch") if case.has_input("micro_batch") else torch.zeros(len(mask))
    total = torch.zeros((), dtype=torch.float64)
    for part in parts.unique():
        rows = parts == part
        tokens = PolicyTokens(
            mask=mask[rows],
            row_scales=scaling.row_scales[rows],
            advantages=-torch.ones(mask[rows].shape),
            weights=None,
            proximal_logprobs=losses[rows].detach(),
        )
        total = total + policy_loss(losses[rows], None, tokens, _config(case, Surrogate.reinforce), KLConfig()).loss
    (gradient,) = torch.autograd.grad(total, losses)
    return {"loss": scaling.factor * total, "grad_loss_mat": scaling.factor * gradient}


def critic_loss(case: Golden) -> Outputs:
    """The clipped value loss."""
    mask, values = case.input("mask"), case.input("vpreds").requires_grad_()
    scaling = Scaling.of(case, mask, "token_mean")
    result = value_loss(
        values, case.input("returns"), case.input("values"), mask, scaling.row_scales, clip=case.option("clip_value")
    )
    (gradient,) = torch.autograd.grad(result.loss, values)
    return {
        "loss": scaling.factor * result.loss,
        "grad_vpreds": scaling.factor * gradient,
        "vf_clipfrac": masked_share(result.clipped, mask),
    }


def from_logits(case: Golden) -> Outputs:
    """What logits say of their labels, and the mean entropy: as a loss it is a negative bonus."""
    mask, logits = case.input("mask"), case.input("logits").requires_grad_()
    scaling = Scaling.of(case, mask, "token_mean")
    labels, vocab_size = case.input("labels").long(), logits.shape[-1]
    # Logits are hidden states that a weight of ones on its diagonal leaves as they are.
    layer = OutputLayer(weight=torch.eye(vocab_size), vocabulary=VocabularyShard.whole(vocab_size))
    scores = score_tokens(logits.flatten(0, -2), layer, labels.flatten(), temperature=1.0, with_sum_pi_squared=True)
    assert scores.sum_pi_squared is not None
    logprobs = scores.logprobs.detach().view(labels.shape)
    tokens = PolicyTokens(
        mask=mask,
        row_scales=scaling.row_scales,
        advantages=torch.zeros(mask.shape),
        weights=None,
        proximal_logprobs=logprobs,
    )
    config = LossConfig(surrogate=Surrogate.reinforce, entropy_coef=1.0)
    loss = -policy_loss(logprobs, scores.entropy.view(labels.shape), tokens, config, KLConfig()).loss
    (gradient,) = torch.autograd.grad(loss, logits)
    return {
        "logprobs": logprobs,
        "entropy": scores.entropy.view(labels.shape),
        "sum_pi_squared": scores.sum_pi_squared.view(labels.shape),
        "loss": scaling.factor * loss,
        "grad_logits": scaling.factor * gradient,
    }


def _config(case: Golden, surrogate: Surrogate) -> LossConfig:
    given = {ours: case.option(name) for name, ours in CONFIG_FIELDS.items() if name in case.options}
    return LossConfig(surrogate=surrogate, **given)


def _selected(
    logprobs: Tensor, advantages: Tensor, mask: Tensor, proximal: Tensor, config: LossConfig
) -> Tensor | None:
    select = SURROGATES[config.surrogate].select
    if select is None:
        return None
    return select(logprobs, advantages, mask, logprobs - proximal, config, torch.Generator().manual_seed(0))


def _metrics(loss: PolicyLoss, mask: Tensor, config: LossConfig) -> dict[str, float | Tensor]:
    """By the peer's names. Its `pg_clipfrac` is of both sides of a clip and its `pg_clipfrac_lower` of a further
    bound, but of `gmpo` they are the upper and the lower side."""
    said, num_tokens = loss.surrogate, mask.sum().clamp(min=1)
    sides = (said.clipped_low | said.clipped_high, said.clipped_dual)
    clipped, lower = (said.clipped_high, said.clipped_low) if config.surrogate == Surrogate.gmpo else sides
    kl = -loss.log_ratio_sums.double().sum() / num_tokens
    if config.surrogate == Surrogate.kl_cov:
        kl = masked_mean(said.ratios.log().abs(), mask)
    return {"pg_clipfrac": masked_share(clipped, mask), "pg_clipfrac_lower": masked_share(lower, mask), "ppo_kl": kl}
