"""Every function with both sides on one batch; imports only inside the peers' environment."""

from collections.abc import Callable, Iterator

import torch
from contest import Contest, Outputs
from objective_batch import Batch
from objective_options import Options
from torch import Tensor
from torchrl.objectives.value.functional import vtrace_advantage_estimate
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig

from async_rl.config.objective import AdvantageConfig, Estimator, KLConfig, LossConfig
from correction.correction import Correction, correct
from correction.masked import count
from correction.rejection import Criterion, CriterionLevel, Statistic
from correction.verl_metrics import verl_metrics
from correction.vtrace import vtrace as v_trace
from correction.weights import Truncated
from learner.advantages.inputs import AdvantageInputs, Advantages
from learner.advantages.table import ADVANTAGES
from learner.losses.aggregation import BatchTotals, token_mean
from learner.losses.policy_loss import PolicyTokens, policy_loss

GAMMA, TRACE_LAMBDA = 0.999, 0.95
CAP, MAX_MEAN_K3 = 2.0, 0.01
"""Of the importance weights, and of a sequence's mean k3."""


def estimate(batch: Batch, config: AdvantageConfig, **tensors: Tensor) -> Advantages:
    """One of our estimators."""
    inputs = AdvantageInputs(mask=batch.mask, token_rewards=batch.rewards, groups=batch.groups, **tensors)
    return ADVANTAGES[config.estimator].function(inputs, config)


def gae(batch: Batch) -> Contest:
    """With its whitening."""
    config = AdvantageConfig(estimator=Estimator.gae, gamma=GAMMA, trace_lambda=TRACE_LAMBDA)

    def ours() -> Outputs:
        advantages, returns = estimate(batch, config, values=batch.values)
        return {"advantages": advantages, "returns": present(returns)}

    def peer() -> Outputs:
        advantages, returns = core_algos.compute_gae_advantage_return(
            batch.rewards, batch.values, batch.peer_mask, GAMMA, TRACE_LAMBDA
        )
        return {"advantages": advantages, "returns": returns}

    return Contest(name="gae", ours=ours, peer=peer)


def reinforce_plus_plus(batch: Batch) -> Contest:
    """With its whitening."""
    config = AdvantageConfig(estimator=Estimator.reinforce_plus_plus, gamma=GAMMA)
    peer_config = AlgoConfig(gamma=GAMMA)

    def ours() -> Outputs:
        advantages, returns = estimate(batch, config)
        return {"advantages": advantages, "returns": present(returns)}

    def peer() -> Outputs:
        advantages, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(
            batch.rewards, batch.peer_mask, peer_config
        )
        return {"advantages": advantages, "returns": returns}

    return Contest(name="reinforce_plus_plus", ours=ours, peer=peer)


def grpo(batch: Batch) -> Contest:
    """Against its vectorised one."""
    config = AdvantageConfig(estimator=Estimator.grpo)
    groups = batch.groups.numpy()

    def peer() -> Outputs:
        advantages, _ = core_algos.compute_grpo_vectorized_outcome_advantage(batch.rewards, batch.peer_mask, groups)
        return {"advantages": advantages}

    return Contest(name="grpo", ours=lambda: {"advantages": estimate(batch, config).advantages}, peer=peer)


def correction(batch: Batch) -> Contest:
    """Truncated weights of tokens, sequences rejected by their mean k3, and every metric."""
    criterion = Criterion(level=CriterionLevel.seq_mean, statistic=Statistic.k3, high=MAX_MEAN_K3)
    options = Correction(weighting=Truncated(cap=CAP), criteria=(criterion,))

    def ours() -> Outputs:
        corrected = correct(batch.proximal_logprobs, batch.rollout_logprobs, batch.mask, options)
        return {"weights": corrected.weights, "mask": corrected.mask, **verl_metrics(corrected)}

    def peer() -> Outputs:
        weights, kept, metrics = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
            batch.proximal_logprobs,
            batch.rollout_logprobs,
            batch.peer_mask,
            rollout_is="token",
            rollout_is_threshold=CAP,
            rollout_rs="seq_mean_k3",
            rollout_rs_threshold=str(MAX_MEAN_K3),
        )
        return {"weights": weights.batch["rollout_is_weights"], "mask": kept, **metrics}

    return Contest(name="correction", ours=ours, peer=peer)


def ppo_loss(batch: Batch) -> Contest:
    """Forward and backward, importance weights, and the metrics of both."""
    logprobs = batch.logprobs.clone().requires_grad_()
    config = LossConfig(clip_low=0.2, clip_high=0.2, clip_dual=3.0)
    peer_config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)

    def take_gradient() -> Tensor:
        # Not left to the next call, where it would be there already.
        gradient, logprobs.grad = present(logprobs.grad), None
        return gradient

    def ours() -> Outputs:
        totals = BatchTotals.of(batch.mask, 1.0)
        tokens = PolicyTokens(
            mask=batch.mask,
            row_scales=token_mean(batch.mask, totals),
            advantages=batch.advantages,
            weights=batch.weights,
            proximal_logprobs=batch.proximal_logprobs,
        )
        result = policy_loss(logprobs, None, tokens, config, KLConfig())
        result.loss.backward()
        said = result.surrogate
        return {
            "loss": result.loss.detach(),
            "gradient": take_gradient(),
            "actor/pg_clipfrac": float(count(said.clipped_low) + count(said.clipped_high)) / totals.num_tokens,
            "actor/pg_clipfrac_lower": float(count(said.clipped_dual)) / totals.num_tokens,
            "actor/ppo_kl": -float(result.log_ratio_sums.sum()) / totals.num_tokens,
        }

    def peer() -> Outputs:
        loss, metrics = core_algos.compute_policy_loss_vanilla(
            batch.proximal_logprobs,
            logprobs,
            batch.advantages,
            batch.peer_loss_mask,
            "token-mean",
            peer_config,
            batch.weights,
        )
        loss.backward()
        return {"loss": loss.detach(), "gradient": take_gradient(), **metrics}

    return Contest(name="ppo_loss", ours=ours, peer=peer)


def vtrace(batch: Batch) -> Contest:
    """Against torchrl's, which knows no mask: it gets the holes closed, and episodes that end where rows do."""
    log_rhos = batch.proximal_logprobs - batch.rollout_logprobs
    order = batch.mask.byte().argsort(dim=1, descending=True, stable=True)
    places = torch.arange(batch.mask.shape[1])
    is_last = (places == batch.mask.sum(1, keepdim=True) - 1)[..., None]
    packed = (batch.proximal_logprobs, batch.rollout_logprobs, batch.values, batch.rewards)
    log_pi, log_mu, values, rewards = (x.gather(1, order)[..., None] for x in packed)
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)

    def ours() -> Outputs:
        result = v_trace(log_rhos, batch.rewards, batch.values, discounts=GAMMA, mask=batch.mask)
        return {"advantages": result.advantages, "targets": result.targets}

    def peer() -> Outputs:
        advantages, targets = vtrace_advantage_estimate(
            GAMMA, log_pi, log_mu, values, next_values, rewards, done=is_last, terminated=is_last
        )
        return {"advantages": advantages[..., 0], "targets": targets[..., 0]}

    def peer_place(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor).scatter_(1, order, tensor)

    return Contest(name="vtrace", ours=ours, peer=peer, peer_place=peer_place)


def present(tensor: Tensor | None) -> Tensor:
    """What this call is sure to give."""
    assert tensor is not None
    return tensor


CONTESTS: dict[str, Callable[[Batch], Contest]] = {
    contest.__name__: contest for contest in (gae, reinforce_plus_plus, correction, ppo_loss, grpo, vtrace)
}


def each(options: Options) -> Iterator[tuple[str, Batch, Contest]]:
    """What was asked for: shape by shape, function by function, named by both."""
    for num_rows, width in options.shapes:
        batch = Batch.make(num_rows, width, has_holes=options.has_holes, has_float_masks=options.has_float_masks)
        for name in options.functions:
            yield f"{name}_{num_rows}x{width}", batch, CONTESTS[name](batch)
