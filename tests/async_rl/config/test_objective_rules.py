"""Contradictions of an objective: each is refused where it stands, and what is near it is not."""

from async_rl.config.objective import (
    Estimator,
    KLController,
    KLEstimator,
    KLPlacement,
    Proximal,
    Surrogate,
    Weighting,
)
from tests.async_rl.config.sound import accepted, refusal


def test_a_group_of_one_with_a_group_baseline() -> None:
    assert str(refusal(generation__group_size=1)) == (
        "generation.group_size=1 leaves grpo without a baseline: it is made of the group's other samples\n"
        "  where:  generation.group_size, advantage.estimator\n"
        "  remedy: set generation.group_size=2 or more, or advantage.estimator=reinforce_plus_plus"
    )
    for estimator in (Estimator.reinforce_plus_plus, Estimator.gae, Estimator.remax):
        accepted(generation__group_size=1, advantage__estimator=estimator)


def test_dropping_groups_that_the_estimator_learns_from() -> None:
    error = refusal(advantage__filter_zero_signal=True, advantage__estimator=Estimator.gae)
    assert error.problem == "advantage.filter_zero_signal=true drops groups of equal rewards, from which gae learns"
    accepted(advantage__filter_zero_signal=True)


def test_several_rewards_need_names_and_one_weight_each() -> None:
    assert refusal(advantage__estimator=Estimator.gdpo).place == "advantage.reward_components"
    error = refusal(advantage__reward_components=["a", "b"], advantage__reward_weights=[1.0])
    assert error.problem == "advantage.reward_weights holds 1 numbers for 2 rewards"
    assert refusal(advantage__reward_components=["a", "a"]).remedy == "name each once"
    accepted(advantage__estimator=Estimator.gdpo, advantage__reward_components=["a", "b"])


def test_penalties_that_an_estimator_does_not_see() -> None:
    gdpo = {"advantage__estimator": Estimator.gdpo, "advantage__reward_components": ["a"]}
    assert refusal(**gdpo, reward__overlong_buffer=4).place == "reward.overlong_buffer, advantage.estimator"
    assert refusal(**gdpo, kl__coef=0.1, kl__placement=KLPlacement.reward).place == "kl.placement, advantage.estimator"


def test_clipping_what_has_not_moved() -> None:
    assert refusal(loss__clip_dual=1.0).place == "loss.clip_dual"
    accepted(loss__clip_dual=0.0)
    assert refusal(loss__ratio_cap=0.5).remedy == "give a number ≥ 1"
    assert refusal(correction__cap=0.5).place == "correction.floor, correction.cap"
    assert refusal(correction__floor=1.5).place == "correction.floor, correction.cap"
    accepted(correction__cap=0.5, correction__weighting=Weighting.off)


def test_a_covariance_between_bounds_that_hold_nothing() -> None:
    assert refusal(loss__clip_cov_low=5.0).problem == (
        "no covariance lies between loss.clip_cov_low=5 and loss.clip_cov_high=5"
    )


def test_a_kl_where_its_estimator_cannot_be() -> None:
    full = refusal(kl__estimator=KLEstimator.full, kl__placement=KLPlacement.reward, kl__coef=0.1)
    assert full.remedy == "set kl.placement=loss, or kl.estimator=k1"
    assert refusal(kl__straight_through=True, kl__placement=KLPlacement.reward).place.startswith("kl.straight_through")
    assert refusal(kl__controller=KLController.adaptive).problem == (
        "kl.controller=adaptive multiplies kl.coef, which is 0"
    )
    accepted(kl__controller=KLController.adaptive, kl__coef=0.001)


def test_correcting_twice_for_the_same_ratio() -> None:
    error = refusal(correction__proximal=Proximal.rollout)
    assert error.problem == (
        "correction.proximal=rollout makes π/μ the ratio of ppo_clip, and correction.weighting=truncated "
        "would correct for it a second time"
    )
    accepted(correction__proximal=Proximal.rollout, correction__weighting=Weighting.off)
    accepted(correction__proximal=Proximal.rollout, loss__surrogate=Surrogate.reinforce)


def test_correcting_twice_with_v_trace() -> None:
    error = refusal(advantage__estimator=Estimator.vtrace)
    assert error.remedy == "set correction.weighting=off, or advantage.estimator=gae"
    unweighted = {"advantage__estimator": Estimator.vtrace, "correction__weighting": Weighting.off}
    accepted(**unweighted)
    error = refusal(**unweighted, correction__proximal=Proximal.rollout)
    assert error.remedy == "set correction.proximal=recompute, or loss.surrogate=reinforce"
    accepted(**unweighted, correction__proximal=Proximal.rollout, loss__surrogate=Surrogate.reinforce)
    accepted(**unweighted, correction__proximal=Proximal.log_linear)


def test_normalising_no_weights() -> None:
    assert refusal(correction__normalize=True, correction__weighting=Weighting.off).remedy == (
        "set correction.normalize=false"
    )


def test_criteria_are_checked_before_the_run() -> None:
    assert refusal(correction__reject=["seq_mean_k3"]).place == "correction.reject"
    assert refusal(correction__reject=["token_k2:1", "token_k2:2"]).remedy == "keep the stricter bound"
    assert refusal(correction__verl_compatible=True).remedy == "set correction.verl_compatible=false"
    accepted(correction__reject=["token_k1:0.5_1.2", "seq_mean_k3:0.01"], correction__verl_compatible=True)


def test_scores_on_arrival_need_something_to_compare_with_and_a_ratio_to_split() -> None:
    on = {"correction__score_on_arrival": True}
    accepted(**on)
    assert refusal(**on, correction__proximal=Proximal.log_linear).remedy == "set correction.proximal=recompute"
    assert refusal(**on, correction__weighting=Weighting.off).remedy == "set correction.weighting=truncated"
    assert refusal(**on, correction__staleness_cap=0.5).place == "correction.staleness_cap"


def test_a_buffer_longer_than_an_answer() -> None:
    assert refusal(reward__overlong_buffer=65).remedy == "set reward.overlong_buffer below 64"
