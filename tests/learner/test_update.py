"""One batch to one version: the right gradient, whatever the objective, and ratios that start at 1."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from async_rl.config import criterion
from async_rl.config.learner import CriticConfig, LearnerConfig
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
from learner.metrics import step_metrics
from learner.packing import PackedSequences
from tests.learner.bigram_backend import BigramBackend
from tests.learner.groups import make_group, make_trajectory, random_batch
from tests.learner.updates import NO_STD, TEMPERATURE, built, config, rich_batch, update, updater_of


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


def test_epochs_times_mini_batches_are_steps_around_the_same_proximal_policy() -> None:
    backend, batch = BigramBackend(lr=2.0), built(random_batch(num_groups=4, group_size=4))
    _, outcome = update(
        backend, batch, config(learner=LearnerConfig(mini_batches=2, epochs=3, micro_batch_tokens=10_000))
    )
    assert backend.calls == ["score"] + ["step"] * 6
    assert len(outcome.trained_tokens.ratios) == 3 * batch.num_trained_tokens
    assert outcome.trained_tokens.ratios.max() > 1.01


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


@pytest.mark.parametrize("proximal", [Proximal.recompute, Proximal.rollout])
def test_a_critic_warms_up_alone_and_its_batches_have_every_metric_but_the_policys(proximal: Proximal) -> None:
    backend, batch = BigramBackend(), rich_batch()
    options = config(
        advantage=AdvantageConfig(estimator=Estimator.gae),
        correction=CorrectionConfig(proximal=proximal),
        critic=CriticConfig(warmup=batch.version + 1),
        kl=KLConfig(coef=0.1, controller=KLController.adaptive),
    )
    updater, before = updater_of(backend, options), backend.table.detach().clone()
    scores = updater.score(batch)
    alone = updater.update(batch, scores)
    assert torch.equal(backend.table, before) and not alone.steps and alone.critic_steps
    metrics = step_metrics(batch, scores, alone, components=["a", "b"]).scalars
    later = dataclasses.replace(batch, version=batch.version + 1)
    scores = updater.score(later)
    together = updater.update(later, scores)
    assert not torch.equal(backend.table, before) and together.steps
    missing = step_metrics(later, scores, together, components=["a", "b"]).scalars.keys() - metrics.keys()
    assert {"loss", "grad_norm", "lr", "entropy", "ppo/kl"} <= missing and not any("critic" in name for name in missing)
    assert metrics["mu_prox/max_abs"] > 0, "the policy's own scores were not taken"
    assert together.kl_coef == 0.1, "the coefficient moved before the policy could"
    assert updater.flops(alone) < updater.flops(together)


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
    updater.snapshot().write(tmp_path)
    other = updater_of(BigramBackend(), options)
    other.load(tmp_path)
    assert other.update(batch, other.score(batch)).kl_coef == pytest.approx(0.5 * (1 + 0.2 * 8 / 100) ** 2)
