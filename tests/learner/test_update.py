"""One batch to one version: the right gradient, whatever the split and the objective, and ratios that start at 1."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from async_rl.config import criterion
from async_rl.config.objective import (
    AdvantageConfig,
    Aggregation,
    CorrectionConfig,
    Estimator,
    KLConfig,
    KLController,
    KLEstimator,
    KLPlacement,
    LossConfig,
    Proximal,
    RatioLevel,
    Surrogate,
    Weighting,
)
from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.schema import GenerationConfig, LearnerConfig, RunConfig
from async_rl.protocol import Batch
from correction import rejection
from correction.ratios import LEVELS
from learner.advantages.inputs import Need
from learner.advantages.table import ADVANTAGES
from learner.batch import TrainingBatch
from learner.kl_controller import KL_CONTROLLERS
from learner.losses.aggregation import AGGREGATIONS
from learner.losses.kl import KL_ESTIMATORS
from learner.losses.table import SURROGATES
from learner.outcome import BatchScores, UpdateOutcome
from learner.packing import PackedSequences
from learner.roles import Roles
from learner.scoring import ScoringPlan
from learner.update import Updater
from tests.learner.bigram_backend import FLOPS, BigramBackend, BigramCritic
from tests.learner.groups import make_group, make_trajectory, random_batch

TEMPERATURE = 0.8
NO_STD = AdvantageConfig(normalize_by_std=False)


def config(**parts: Any) -> RunConfig:
    """With a small micro-batch, so that a batch has several."""
    learner = parts.pop("learner", LearnerConfig(micro_batch_tokens=20))
    return RunConfig(generation=GenerationConfig(temperature=TEMPERATURE), learner=learner, **parts)


def updater_of(backend: BigramBackend, config: RunConfig, reference: BigramBackend | None = None) -> Updater:
    if config.kl.coef > 0 and reference is None:
        reference = BigramBackend(seed=1)
    critic = BigramCritic() if ScoringPlan.of(config).values else None
    return Updater(Roles(policy=backend, reference=reference, critic=critic), config, flops=FLOPS)


def update(
    backend: BigramBackend, batch: TrainingBatch, config: RunConfig, reference: BigramBackend | None = None
) -> tuple[BatchScores, UpdateOutcome]:
    updater = updater_of(backend, config, reference)
    scores = updater.score(batch)
    return scores, updater.update(batch, scores)


def built(batch: Batch, mask_above: int | None = None) -> TrainingBatch:
    return TrainingBatch.build(batch, mask_above=mask_above)


def rich_batch(seed: int = 5) -> TrainingBatch:
    """Four groups with everything that an estimator can ask for."""
    received = random_batch(num_groups=4, group_size=4, seed=seed, num_components=2, with_baseline=True)
    return built(received)


def grpo_by_hand(batch: TrainingBatch) -> list[float]:
    advantages = []
    for sequence in batch.sequences:
        rewards = torch.tensor([s.reward for s in batch.sequences if s.group == sequence.group])
        advantages.append(float((sequence.reward - rewards.mean()) / (rewards.std() + 1e-6)))
    return advantages


def by_hand(backend: BigramBackend, batch: TrainingBatch, reference: BigramBackend, *, cap: float) -> Tensor:
    """The on-policy gradient with entropy bonus 0.05 and KL 0.1, sequence by sequence, token by token."""
    table = backend.table.detach().clone().requires_grad_()
    total = torch.zeros(())
    for row, (sequence, advantage) in enumerate(zip(batch.sequences, grpo_by_hand(batch), strict=True)):
        start = sequence.prompt_length
        for t in range(sequence.response_length):
            assert sequence.token_ids is not None
            last, token = int(sequence.token_ids[start + t - 1]), int(sequence.token_ids[start + t])
            log_p = torch.log_softmax(table[last] / TEMPERATURE, 0)
            log_q = torch.log_softmax(reference.table.detach()[last] / TEMPERATURE, 0)
            weight = min(float((log_p[token].detach() - batch.rollout_logprobs[row, t]).exp()), cap)
            d = log_p[token] - log_q[token]
            entropy = -(log_p.exp() * log_p).sum()
            total = total - weight * advantage * log_p[token] - 0.05 * entropy + 0.1 * ((-d).exp() + d - 1)
    (total / batch.num_trained_tokens).backward()
    assert table.grad is not None
    return table.grad


def test_every_choice_of_the_config_has_its_function() -> None:
    assert set(ADVANTAGES) == set(Estimator)
    assert set(SURROGATES) == set(Surrogate)
    assert {*AGGREGATIONS, "auto"} == set(Aggregation)
    assert {*KL_ESTIMATORS, "full"} == set(KLEstimator)
    assert set(KL_CONTROLLERS) == set(KLController)
    assert set(LEVELS) == set(RatioLevel)
    assert [level.value for level in rejection.CriterionLevel] == [level.value for level in criterion.CriterionLevel]
    assert [kind.value for kind in rejection.Statistic] == [kind.value for kind in criterion.Statistic]


def test_the_config_knows_what_each_estimator_needs() -> None:
    def needing(need: Need) -> set[str]:
        return {name for name, estimator in ADVANTAGES.items() if need in estimator.needs}

    assert needing(Need.VALUES) == VALUE_ESTIMATORS
    greedy = {e for e in Estimator if AdvantageConfig(estimator=e).takes_greedy_baseline}
    assert needing(Need.GREEDY_BASELINE) == greedy


def test_the_gradient_of_one_step_is_the_one_worked_out_by_hand() -> None:
    batch = built(random_batch(num_groups=4, group_size=4, seed=3))
    backend, reference = BigramBackend(), BigramBackend()
    with torch.no_grad():
        reference.table += 0.3 * torch.randn(reference.table.shape, generator=torch.Generator().manual_seed(1))
    expected = by_hand(backend, batch, reference, cap=2.0)
    update(backend, batch, config(loss=LossConfig(entropy_coef=0.05), kl=KLConfig(coef=0.1)), reference)
    torch.testing.assert_close(backend.gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("surrogate", Surrogate)
@pytest.mark.parametrize("aggregation", [Aggregation.auto, Aggregation.seq_mean_token_sum_norm])
def test_no_split_into_micro_batches_changes_the_step(surrogate: Surrogate, aggregation: Aggregation) -> None:
    steps = []
    for max_tokens in (10_000, 40, 13, 1):
        backend = BigramBackend(lr=2.0)
        learner = LearnerConfig(micro_batch_tokens=max_tokens, mini_batches=2, epochs=2)
        loss = LossConfig(surrogate=surrogate, aggregation=aggregation, cov_share=0.1)
        kl = KLConfig(coef=0.1, straight_through=True)
        _, outcome = update(backend, rich_batch(), config(learner=learner, loss=loss, kl=kl))
        steps.append(([s.loss for s in outcome.steps], backend.table.detach()))
    for losses, table in steps[1:]:
        assert losses == pytest.approx(steps[0][0], abs=1e-6)
        torch.testing.assert_close(table, steps[0][1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("correction", [
    CorrectionConfig(normalize=True),
    CorrectionConfig(reject=["seq_mean_k3:0.3", "token_k1:0.2_4.0"], veto=1e-3),
    CorrectionConfig(proximal=Proximal.rollout, weighting=Weighting.off),
    CorrectionConfig(proximal=Proximal.log_linear, weighting=Weighting.masked, floor=0.5),
    CorrectionConfig(level=RatioLevel.sequence, weighting=Weighting.masked, floor=0.1, cap=5.0),
    CorrectionConfig(level=RatioLevel.segment),
    CorrectionConfig(level=RatioLevel.geometric),
])  # fmt: skip
def test_no_split_changes_a_correction(correction: CorrectionConfig) -> None:
    gradients = []
    for max_tokens in (10_000, 13):
        backend = BigramBackend()
        learner = LearnerConfig(micro_batch_tokens=max_tokens)
        update(backend, rich_batch(), config(learner=learner, correction=correction))
        gradients.append(backend.gradient)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("estimator", Estimator)
def test_every_estimator_trains_the_policy_and_its_critic(estimator: Estimator) -> None:
    backend = BigramBackend()
    advantage = AdvantageConfig(estimator=estimator, reward_components=["first", "second"], trace_lambda=0.9)
    scores, outcome = update(backend, rich_batch(), config(advantage=advantage))
    assert backend.gradient.abs().max() > 0 and backend.gradient.isfinite().all()
    assert bool(outcome.critic_steps) == (estimator in (Estimator.gae, Estimator.vtrace))
    assert scores.advantages.advantages.isfinite().all()


def test_with_one_step_a_batch_pi_prox_is_not_scored_first() -> None:
    backend = BigramBackend()
    _, outcome = update(backend, rich_batch(), config())
    assert backend.calls == ["step"]
    ratios = outcome.trained_tokens.ratios
    assert ratios.tolist() == pytest.approx([1.0] * len(ratios), abs=1e-6)


def test_scoring_first_or_in_the_step_is_the_same_step() -> None:
    in_step, first = BigramBackend(), BigramBackend()
    _, outcome = update(in_step, rich_batch(), config())
    # A criterion that all pass asks for the numbers of the whole batch before the loss.
    _, expected = update(first, rich_batch(), config(correction=CorrectionConfig(reject=["token_k3:1000000"])))
    assert first.calls == ["score"] * first.calls.count("score") + ["step"]
    torch.testing.assert_close(in_step.gradient, first.gradient, rtol=0, atol=1e-7)
    assert outcome.corrected is not None and expected.corrected is not None
    torch.testing.assert_close(outcome.corrected.weights, expected.corrected.weights)


@pytest.mark.parametrize("correction", [
    CorrectionConfig(proximal=Proximal.rollout, level=RatioLevel.sequence),
    CorrectionConfig(proximal=Proximal.log_linear, level=RatioLevel.segment, weighting=Weighting.masked),
])  # fmt: skip
def test_weights_without_a_fixed_proximal_policy_move_with_each_step(correction: CorrectionConfig) -> None:
    in_step, first, normalized = BigramBackend(), BigramBackend(), BigramBackend()
    stale = built(random_batch(num_groups=4, group_size=4, version=3, seed=5))
    learner, loss = LearnerConfig(epochs=2, mini_batches=2), LossConfig(surrogate=Surrogate.reinforce)
    update(in_step, stale, config(learner=learner, loss=loss, correction=correction))
    # Neither what all pass nor a normaliser, which is of the batch's start, holds the weights still.
    passed = dataclasses.replace(correction, reject=["token_k3:1000000000"])
    update(first, stale, config(learner=learner, loss=loss, correction=passed))
    torch.testing.assert_close(in_step.table.detach(), first.table.detach(), rtol=0, atol=1e-5)
    divided = dataclasses.replace(correction, normalize=True)
    _, outcome = update(normalized, stale, config(learner=learner, loss=loss, correction=divided))
    assert outcome.corrected is not None
    normalizer = outcome.corrected.diagnostics.weights.normalizer
    assert abs(normalizer - 1) > 0.05
    scaled = BigramBackend(lr=0.5 / normalizer)
    update(scaled, stale, config(learner=learner, loss=loss, correction=correction))
    torch.testing.assert_close(normalized.table.detach(), scaled.table.detach(), rtol=0, atol=1e-5)


def test_epochs_times_mini_batches_are_steps_around_the_same_proximal_policy() -> None:
    backend, batch = BigramBackend(lr=2.0), built(random_batch(num_groups=4, group_size=4))
    _, outcome = update(
        backend, batch, config(learner=LearnerConfig(mini_batches=2, epochs=3, micro_batch_tokens=10_000))
    )
    assert backend.calls == ["score"] + ["step"] * 6
    assert len(outcome.trained_tokens.ratios) == 3 * batch.num_trained_tokens
    assert outcome.trained_tokens.ratios.max() > 1.01


def test_bypass_takes_the_engine_for_the_proximal_policy_and_scores_nothing() -> None:
    backend, batch = BigramBackend(), rich_batch()
    off = CorrectionConfig(proximal=Proximal.rollout, weighting=Weighting.off)
    learner = LearnerConfig(epochs=2, micro_batch_tokens=10_000)
    _, outcome = update(backend, batch, config(correction=off, learner=learner))
    assert backend.calls == ["step", "step"]
    mu = batch.rollout_logprobs[batch.mask]
    ratios = (outcome.logprobs[batch.mask] - mu).exp()
    torch.testing.assert_close(outcome.tokens[0].ratios, ratios)


def test_log_linear_holds_fresh_tokens_to_the_engine_and_stale_ones_to_what_lies_between() -> None:
    tokens = [make_trajectory([1, 2], versions=[4, 4], reward=1.0), make_trajectory([3, 4], versions=[3, 3])]
    batch = built(Batch.whole(version=4, groups=[make_group(0, [5], tokens)]))
    _, outcome = update(BigramBackend(), batch, config(correction=CorrectionConfig(proximal=Proximal.log_linear)))
    log_ratios = outcome.logprobs[:, :2] - batch.rollout_logprobs[:, :2]
    expected = torch.cat([log_ratios[0], log_ratios[1] / 2]).exp()
    torch.testing.assert_close(outcome.tokens[0].ratios, expected)


def test_each_mini_batch_has_a_normaliser_of_its_own() -> None:
    short, long = make_trajectory([1], reward=1.0), make_trajectory([2], reward=0.0)
    wide = [make_trajectory([3] * 8, reward=1.0), make_trajectory([4] * 8, reward=0.0)]
    batch = built(Batch.whole(version=0, groups=[make_group(0, [5], [short, long]), make_group(1, [5], wide)]))
    off = CorrectionConfig(weighting=Weighting.off)
    _, outcome = update(
        BigramBackend(lr=0.0), batch, config(learner=LearnerConfig(mini_batches=2), advantage=NO_STD, correction=off)
    )
    # Ratios are 1, so each loss is minus the mean advantage, which is 0 in either group.
    assert [step.loss for step in outcome.steps] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_weights_are_of_the_proximal_policy_over_the_one_that_sampled() -> None:
    backend = BigramBackend()
    log_p = backend.forward(PackedSequences.pack([[1, 2, 3]]), TEMPERATURE).logprobs.detach()
    mu = [float(log_p[0]) - 0.1, float(log_p[1]) - 5.0]
    group = make_group(0, [1], [make_trajectory([2, 3], rollout_logprobs=mu), make_trajectory([2, 3])])
    _, outcome = update(
        backend, built(Batch.whole(version=0, groups=[group])), config(correction=CorrectionConfig(cap=2.0))
    )
    assert outcome.corrected is not None
    assert outcome.corrected.weights[0].tolist() == pytest.approx([1.10517, 2.0], abs=1e-5)
    assert outcome.corrected.bounded[0].tolist() == [False, True]


def test_a_trajectory_masked_for_its_age_still_sets_the_baseline() -> None:
    old = make_trajectory([1, 2], reward=1.0, versions=[0, 0])
    new = make_trajectory([3, 4], reward=0.0, versions=[5, 5])
    batch = built(Batch.whole(version=5, groups=[make_group(0, [6], [old, new])]), mask_above=4)
    scores, outcome = update(BigramBackend(), batch, config(advantage=NO_STD))
    assert scores.advantages.advantages.tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    assert len(outcome.trained_tokens.ratios) == 2


def test_a_rejected_trajectory_sets_no_baseline() -> None:
    far = make_trajectory([1, 2], reward=1.0, rollout_logprobs=[-30.0, -30.0])
    near = [make_trajectory([3, 4], reward=r) for r in (0.0, 0.5)]
    batch = built(Batch.whole(version=0, groups=[make_group(0, [6], [far, *near])]))
    correction = CorrectionConfig(reject=["seq_max_k2:20"])
    scores, outcome = update(BigramBackend(), batch, config(advantage=NO_STD, correction=correction))
    assert scores.advantages.advantages.tolist() == [[0.0, 0.0], [-0.25, -0.25], [0.25, 0.25]]
    assert len(outcome.trained_tokens.ratios) == 4


def test_a_batch_that_is_all_rejected_changes_nothing() -> None:
    backend = BigramBackend()
    before = backend.table.detach().clone()
    correction = CorrectionConfig(reject=["token_k3:1e-9"])
    scores, outcome = update(backend, rich_batch(), config(correction=correction))
    assert not scores.mask.any()
    assert outcome.steps[0].loss == 0 and not outcome.steps[0].skipped
    assert torch.equal(backend.table.detach(), before)


def test_a_batch_with_nothing_to_train_changes_nothing() -> None:
    batch = built(random_batch(num_groups=2, group_size=2, version=9))
    nothing = dataclasses.replace(batch, mask=batch.mask & False)
    backend = BigramBackend()
    before = backend.table.detach().clone()
    _, outcome = update(backend, nothing, config())
    assert outcome.steps[0].loss == 0 and not outcome.steps[0].skipped
    assert torch.equal(backend.table.detach(), before)


def test_a_policy_that_is_not_finite_is_a_skipped_step() -> None:
    backend = BigramBackend()
    with torch.no_grad():
        backend.table[:] = torch.nan
    _, outcome = update(backend, built(random_batch(num_groups=2, group_size=2)), config())
    assert outcome.steps[0].skipped


def test_a_better_policy_comes_out_of_it() -> None:
    good, bad = make_trajectory([1, 2], reward=1.0), make_trajectory([3, 4], reward=0.0)
    batch = built(Batch.whole(version=0, groups=[make_group(0, [5], [good, bad])]))
    backend = BigramBackend()
    packed = PackedSequences.pack([[5, 1, 2]])
    before = float(backend.forward(packed, TEMPERATURE).logprobs.detach().sum())
    for _ in range(5):
        update(backend, batch, config())
    assert float(backend.forward(packed, TEMPERATURE).logprobs.detach().sum()) > before + 0.1


@pytest.mark.parametrize("estimator", KLEstimator)
def test_a_kl_in_the_loss_pulls_the_policy_to_its_reference(estimator: KLEstimator) -> None:
    reference = BigramBackend(seed=1)
    backend = BigramBackend(lr=0.5)
    batch = built(random_batch(num_groups=2, group_size=4))
    nothing_else = AdvantageConfig(normalize_by_std=False)
    still = dataclasses.replace(batch, token_rewards=torch.zeros_like(batch.token_rewards))
    # Straight through, since the gradient of k1 alone is noise.
    kl = KLConfig(coef=1.0, estimator=estimator, straight_through=estimator is not KLEstimator.full)
    said = []
    for _ in range(30):
        _, outcome = update(backend, still, config(advantage=nothing_else, kl=kl), reference)
        said.append(float(outcome.trained_tokens.reference_kl.abs().mean()))
    assert said[-1] < 0.8 * said[0]


def test_a_kl_in_the_reward_is_taken_from_each_token() -> None:
    reference, backend, batch = BigramBackend(seed=1), BigramBackend(), built(random_batch(num_groups=2, group_size=2))
    kl = KLConfig(coef=0.5, placement=KLPlacement.reward, estimator=KLEstimator.k1)
    scores, _ = update(backend, batch, config(kl=kl), reference)
    assert scores.models.logprobs is not None and scores.models.reference_logprobs is not None
    d = (scores.models.logprobs - scores.models.reference_logprobs)[batch.mask]
    expected = batch.token_rewards[batch.mask] - 0.5 * d
    torch.testing.assert_close(scores.rewards.token_rewards[batch.mask], expected)


def test_an_adaptive_coefficient_moves_and_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    kl = KLConfig(coef=0.5, controller=KLController.adaptive, target=1e-6, horizon=100)
    options = config(kl=kl)
    updater, batch = updater_of(BigramBackend(), options), built(random_batch(num_groups=2, group_size=4))
    assert updater.update(batch, updater.score(batch)).kl_coef == 0.5
    assert updater.update(batch, updater.score(batch)).kl_coef == pytest.approx(0.5 * (1 + 0.2 * 8 / 100))
    updater.save(tmp_path)
    other = updater_of(BigramBackend(), options)
    other.load(tmp_path)
    assert other.update(batch, other.score(batch)).kl_coef == pytest.approx(0.5 * (1 + 0.2 * 8 / 100) ** 2)


def test_what_was_scored_on_arrival_tells_mismatch_from_staleness() -> None:
    backend = BigramBackend()
    crossed = [make_trajectory([1, 2, 3], versions=[3, 4, 4], reward=1.0), make_trajectory([4], versions=[4])]
    late = [make_trajectory([5, 6], versions=[4, 4], reward=1.0), make_trajectory([7], versions=[3])]
    first, second = make_group(0, [8], crossed), make_group(1, [9], late)
    updater = updater_of(backend, config(correction=CorrectionConfig(score_on_arrival=True)))
    updater.score_arrival(first)
    behaviour = backend.forward(PackedSequences.pack([[8, 1, 2, 3], [8, 4]]), TEMPERATURE).logprobs.detach()
    with torch.no_grad():
        backend.table += 0.2 * torch.randn(backend.table.shape, generator=torch.Generator().manual_seed(1))
    batch = built(Batch.whole(version=5, groups=[first, second]))
    scores = updater.score(batch)
    assert scores.corrected is not None
    report = scores.corrected.diagnostics.decomposition
    # Of the first group alone, and there of the tokens that the version in force had sampled; their log μ is −1.
    assert report is not None and report.scored_share == 3 / 7
    assert report.mismatch.k1 == pytest.approx(-1 - float(behaviour[[1, 2, 3]].mean()), rel=1e-5)
    assert report.staleness.max_abs > 0.01
    again = updater.score(batch).corrected
    assert again is not None and again.diagnostics.decomposition is not None
    assert again.diagnostics.decomposition.scored_share == 0, "it was kept for one batch"
