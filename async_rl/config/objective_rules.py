"""Contradictions between the options of the objective: advantage, loss, KL, correction.

Owns the rules that join two of them or more; a range of one option stands beside it in `objective`.
"""

from async_rl.config.criterion import Statistic, parse_criterion
from async_rl.config.objective import (
    Estimator,
    KLController,
    KLEstimator,
    KLPlacement,
    Proximal,
    Surrogate,
    Weighting,
)
from async_rl.config.part_rules import refuse
from async_rl.config.schema import RunConfig

GROUP_ESTIMATORS = frozenset(
    {
        Estimator.grpo, Estimator.grpo_passk, Estimator.gdpo, Estimator.rloo, Estimator.opo, Estimator.gpg,
        Estimator.reinforce_plus_plus_baseline, Estimator.optimal_token_baseline,
        Estimator.tir_optimal_token_baseline,
    }
)  # fmt: skip
"""Those whose baseline is made of the group's other samples."""

WITHOUT_GROUPS = frozenset({Estimator.gae, Estimator.vtrace, Estimator.reinforce_plus_plus})
"""Those that learn from a group of equal rewards, too."""

VALUE_ESTIMATORS = frozenset({Estimator.gae, Estimator.vtrace})
"""Those with a critic."""

RATIO_FREE = frozenset({Surrogate.reinforce, Surrogate.gpg})
"""Losses in which π/π_prox does not stand."""


def check_objective(config: RunConfig) -> None:
    """Raises a `ConfigError` for the first contradiction."""
    _check_advantage(config)
    _check_shaping(config)
    _check_loss(config)
    _check_kl(config)
    _check_weights(config)
    _check_rejection(config)
    _check_score_on_arrival(config)
    _check_overlong(config)


def _check_advantage(config: RunConfig) -> None:
    estimator, advantage = config.advantage.estimator, config.advantage
    refuse(
        config.generation.group_size == 1 and estimator in GROUP_ESTIMATORS,
        f"generation.group_size=1 leaves {estimator} without a baseline: it is made of the group's other samples",
        place="generation.group_size, advantage.estimator",
        remedy="set generation.group_size=2 or more, or advantage.estimator=reinforce_plus_plus",
    )
    refuse(
        advantage.filter_zero_signal and estimator in WITHOUT_GROUPS,
        f"advantage.filter_zero_signal=true drops groups of equal rewards, from which {estimator} learns",
        place="advantage.filter_zero_signal, advantage.estimator",
        remedy="set advantage.filter_zero_signal=false",
    )
    names, weights = advantage.reward_components, advantage.reward_weights
    refuse(
        estimator is Estimator.gdpo and not names,
        "advantage.estimator=gdpo needs several rewards, and advantage.reward_components is empty",
        place="advantage.reward_components",
        remedy="name the rewards that the reward function returns: advantage.reward_components=[correct,format]",
    )
    refuse(
        bool(weights) and len(weights) != len(names),
        f"advantage.reward_weights holds {len(weights)} numbers for {len(names)} rewards",
        place="advantage.reward_weights, advantage.reward_components",
        remedy="give one weight for each name, or none",
    )
    refuse(
        len(set(names)) != len(names),
        f"advantage.reward_components={names} names a reward twice",
        place="advantage.reward_components",
        remedy="name each once",
    )


def _check_shaping(config: RunConfig) -> None:
    refuse(
        config.advantage.estimator is Estimator.gdpo and config.reward.overlong_buffer > 0,
        "advantage.estimator=gdpo takes its rewards one by one, and reward.overlong_buffer is a penalty on their sum",
        place="reward.overlong_buffer, advantage.estimator",
        remedy="set reward.overlong_buffer=0, and let the reward function return a component for length",
    )
    refuse(
        config.advantage.estimator is Estimator.gdpo
        and config.kl.coef > 0
        and config.kl.placement is KLPlacement.reward,
        "advantage.estimator=gdpo takes its rewards one by one, and kl.placement=reward is a penalty on their sum",
        place="kl.placement, advantage.estimator",
        remedy="set kl.placement=loss",
    )


def _check_loss(config: RunConfig) -> None:
    loss = config.loss
    refuse(
        0 < loss.clip_dual <= 1,
        f"loss.clip_dual={loss.clip_dual:g} clips tokens that have not moved (their ratio is 1)",
        place="loss.clip_dual",
        remedy="give a number above 1 (3 is usual), or 0 to turn it off",
    )
    refuse(
        loss.ratio_cap < 1,
        f"loss.ratio_cap={loss.ratio_cap:g} cuts tokens that have not moved (their ratio is 1)",
        place="loss.ratio_cap",
        remedy="give a number ≥ 1",
    )
    refuse(
        loss.clip_cov_low >= loss.clip_cov_high,
        f"no covariance lies between loss.clip_cov_low={loss.clip_cov_low:g} and "
        f"loss.clip_cov_high={loss.clip_cov_high:g}",
        place="loss.clip_cov_low, loss.clip_cov_high",
        remedy="set the first below the second (1 and 5 are usual)",
    )


def _check_kl(config: RunConfig) -> None:
    kl = config.kl
    refuse(
        kl.placement is KLPlacement.reward and kl.estimator is KLEstimator.full,
        "kl.estimator=full is a term of the loss: a reward has the sampled tokens alone",
        place="kl.estimator, kl.placement",
        remedy="set kl.placement=loss, or kl.estimator=k1",
    )
    refuse(
        kl.straight_through and (kl.placement is KLPlacement.reward or kl.estimator is KLEstimator.full),
        "kl.straight_through is about the gradient of an estimator in the loss",
        place="kl.straight_through, kl.placement, kl.estimator",
        remedy="set kl.straight_through=false, or kl.placement=loss with k1, abs, k2 or k3",
    )
    refuse(
        kl.controller is KLController.adaptive and kl.coef == 0,
        "kl.controller=adaptive multiplies kl.coef, which is 0",
        place="kl.controller, kl.coef",
        remedy="set kl.coef above 0 (0.001 is usual), or kl.controller=fixed",
    )


def _check_weights(config: RunConfig) -> None:
    correction, surrogate = config.correction, config.loss.surrogate
    is_on = correction.weighting is not Weighting.off
    refuse(
        is_on and not correction.floor <= 1 <= correction.cap,
        f"weights between correction.floor={correction.floor:g} and correction.cap={correction.cap:g} "
        "change on-policy tokens, whose weight is 1",
        place="correction.floor, correction.cap",
        remedy="set the cap to 1 or more (2 is usual) and the floor to 1 or less, or correction.weighting=off",
    )
    refuse(
        is_on and correction.proximal is Proximal.rollout and surrogate not in RATIO_FREE,
        f"correction.proximal=rollout makes π/μ the ratio of {surrogate}, and correction.weighting="
        f"{correction.weighting} would correct for it a second time",
        place="correction.proximal, correction.weighting, loss.surrogate",
        remedy="set correction.weighting=off, or loss.surrogate=reinforce",
    )
    refuse(
        is_on and config.advantage.estimator is Estimator.vtrace,
        f"advantage.estimator=vtrace weighs each token by π_prox/μ, and correction.weighting={correction.weighting} "
        "would do so a second time",
        place="advantage.estimator, correction.weighting",
        remedy="set correction.weighting=off, or advantage.estimator=gae",
    )
    refuse(
        config.advantage.estimator is Estimator.vtrace
        and correction.proximal is Proximal.rollout
        and surrogate not in RATIO_FREE,
        f"advantage.estimator=vtrace weighs each token by π/μ, and correction.proximal=rollout makes that the ratio of "
        f"{surrogate}, too",
        place="advantage.estimator, correction.proximal, loss.surrogate",
        remedy="set correction.proximal=recompute, or loss.surrogate=reinforce",
    )
    refuse(
        correction.normalize and not is_on,
        "correction.normalize has no weights to divide: correction.weighting=off",
        place="correction.normalize, correction.weighting",
        remedy="set correction.normalize=false",
    )


def _check_rejection(config: RunConfig) -> None:
    correction = config.correction
    criteria = [parse_criterion(text) for text in correction.reject]
    names = [f"{c.level}_{c.statistic}" for c in criteria]
    refuse(
        len(set(names)) != len(names),
        f"correction.reject={correction.reject} holds a criterion twice",
        place="correction.reject",
        remedy="keep the stricter bound",
    )
    refuse(
        correction.verl_compatible and all(c.statistic is not Statistic.k1 for c in criteria),
        "correction.verl_compatible turns the bounds of k1 criteria around, and correction.reject holds none",
        place="correction.verl_compatible, correction.reject",
        remedy="set correction.verl_compatible=false",
    )


def _check_score_on_arrival(config: RunConfig) -> None:
    correction = config.correction
    if not correction.score_on_arrival:
        return
    refuse(
        correction.proximal is not Proximal.recompute,
        f"correction.score_on_arrival compares with a scored π_prox, and correction.proximal={correction.proximal} "
        "scores none",
        place="correction.score_on_arrival, correction.proximal",
        remedy="set correction.proximal=recompute",
    )
    refuse(
        correction.weighting is Weighting.off,
        "correction.score_on_arrival caps the two factors of a weight, and correction.weighting=off",
        place="correction.score_on_arrival, correction.weighting",
        remedy="set correction.weighting=truncated",
    )
    for name, cap in (("mismatch_cap", correction.mismatch_cap), ("staleness_cap", correction.staleness_cap)):
        refuse(
            cap < 1,
            f"correction.{name}={cap:g} cuts on-policy tokens, whose ratio is 1",
            place=f"correction.{name}",
            remedy="give a number ≥ 1 (2 is usual)",
        )


def _check_overlong(config: RunConfig) -> None:
    buffer, limit = config.reward.overlong_buffer, config.generation.max_new_tokens
    refuse(
        buffer > limit,
        f"reward.overlong_buffer={buffer} is longer than a response, generation.max_new_tokens={limit}",
        place="reward.overlong_buffer, generation.max_new_tokens",
        remedy=f"set reward.overlong_buffer below {limit}",
    )
