"""One batch to one version: the right gradient, whatever the split, and ratios that start at 1."""

import dataclasses

import pytest
import torch
from torch import Tensor

from async_rl.config.schema import Advantage, CorrectionConfig, LearnerConfig, ObjectiveConfig, Weighting
from async_rl.protocol import Batch
from correction.weights import WEIGHTINGS
from learner.advantages import ADVANTAGES, grpo
from learner.batch import TrainingBatch
from learner.packing import PackedSequences
from learner.update import BatchScores, UpdateOutcome, Updater
from tests.learner.bigram_backend import BigramBackend
from tests.learner.groups import make_group, make_trajectory, random_batch

TEMPERATURE = 0.8


def update(
    backend: BigramBackend,
    batch: TrainingBatch,
    *,
    learner: LearnerConfig | None = None,
    objective: ObjectiveConfig | None = None,
    correction: CorrectionConfig | None = None,
    reference: BigramBackend | None = None,
) -> tuple[BatchScores, UpdateOutcome]:
    updater = Updater(
        backend,
        reference,
        learner=learner or LearnerConfig(micro_batch_tokens=20),
        objective=objective or ObjectiveConfig(),
        correction=correction or CorrectionConfig(),
        temperature=TEMPERATURE,
    )
    scores = updater.score(batch)
    return scores, updater.update(batch, scores)


def built(batch: Batch, mask_above: int | None = None) -> TrainingBatch:
    return TrainingBatch.build(batch, mask_above=mask_above)


def by_hand(
    backend: BigramBackend, batch: TrainingBatch, objective: ObjectiveConfig, cap: float, reference: BigramBackend
) -> Tensor:
    """The on-policy gradient, sequence by sequence, token by token."""
    advantages = grpo(batch.rewards, batch.groups, batch.counted, objective.normalize_by_std)
    table = backend.table.detach().clone().requires_grad_()
    total = torch.zeros(())
    for sequence, advantage in zip(batch.sequences, advantages, strict=True):
        for t in range(1, len(sequence.token_ids)):
            if not sequence.mask[t]:
                continue
            last, token = int(sequence.token_ids[t - 1]), int(sequence.token_ids[t])
            log_p = torch.log_softmax(table[last] / TEMPERATURE, 0)
            log_q = torch.log_softmax(reference.table.detach()[last] / TEMPERATURE, 0)
            weight = min(float((log_p[token].detach() - sequence.rollout_logprobs[t]).exp()), cap)
            d = log_p[token] - log_q[token]
            entropy = -(log_p.exp() * log_p).sum()
            total = total - weight * advantage * log_p[token]
            total = total - objective.entropy_coef * entropy
            total = total + objective.kl_coef * ((-d).exp() + d - 1)
    (total / batch.num_trained_tokens).backward()
    assert table.grad is not None
    return table.grad


def test_every_choice_of_the_config_has_its_function() -> None:
    assert set(WEIGHTINGS) == {str(choice) for choice in Weighting}
    assert set(ADVANTAGES) == {str(choice) for choice in Advantage}


def test_the_gradient_of_one_step_is_the_one_worked_out_by_hand() -> None:
    batch = built(random_batch(num_groups=4, group_size=4, seed=3))
    backend, reference = BigramBackend(), BigramBackend()
    with torch.no_grad():
        reference.table += 0.3 * torch.randn(reference.table.shape, generator=torch.Generator().manual_seed(1))
    objective = ObjectiveConfig(entropy_coef=0.05, kl_coef=0.1)
    expected = by_hand(backend, batch, objective, 2.0, reference)
    update(backend, batch, objective=objective, reference=reference)
    torch.testing.assert_close(backend.gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_tokens", [1, 13, 40])
def test_no_split_into_micro_batches_changes_the_step(max_tokens: int) -> None:
    batch = built(random_batch(num_groups=4, group_size=4, seed=5))
    whole, split = BigramBackend(), BigramBackend()
    _, expected = update(whole, batch, learner=LearnerConfig(micro_batch_tokens=10_000))
    _, outcome = update(split, batch, learner=LearnerConfig(micro_batch_tokens=max_tokens))
    assert outcome.steps[0].loss == pytest.approx(expected.steps[0].loss, abs=1e-7)
    torch.testing.assert_close(split.gradient, whole.gradient, rtol=0, atol=1e-7)


def test_with_one_epoch_and_one_mini_batch_every_ratio_is_one() -> None:
    _, outcome = update(BigramBackend(), built(random_batch(num_groups=2, group_size=4)))
    assert len(outcome.steps) == 1
    assert outcome.trained_tokens.ratios.tolist() == pytest.approx([1.0] * len(outcome.trained_tokens.ratios), abs=1e-6)


def test_epochs_times_mini_batches_are_steps_around_the_same_proximal_policy() -> None:
    backend, batch = BigramBackend(lr=2.0), built(random_batch(num_groups=4, group_size=4))
    learner = LearnerConfig(mini_batches=2, epochs=3, micro_batch_tokens=10_000)
    _, outcome = update(backend, batch, learner=learner)
    assert backend.calls == ["score"] + ["step"] * 6
    assert len(outcome.trained_tokens.ratios) == 3 * batch.num_trained_tokens
    assert outcome.trained_tokens.ratios.max() > 1.01


def test_each_mini_batch_has_a_normaliser_of_its_own() -> None:
    short, long = make_trajectory([1], reward=1.0), make_trajectory([2], reward=0.0)
    wide = [make_trajectory([3] * 8, reward=1.0), make_trajectory([4] * 8, reward=0.0)]
    batch = built(Batch(version=0, groups=[make_group(0, [5], [short, long]), make_group(1, [5], wide)]))
    off = CorrectionConfig(weighting=Weighting.off)
    objective = ObjectiveConfig(normalize_by_std=False)
    _, outcome = update(
        BigramBackend(lr=0.0), batch, learner=LearnerConfig(mini_batches=2), objective=objective, correction=off
    )
    # Ratios are 1, so each loss is minus the mean advantage, which is 0 in either group.
    assert [step.loss for step in outcome.steps] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_weights_are_of_the_proximal_policy_over_the_one_that_sampled() -> None:
    backend = BigramBackend()
    packed = PackedSequences.pack([[1, 2, 3]])
    log_p = backend.forward(packed, TEMPERATURE).logprobs.detach()
    mu = [float(log_p[1]) - 0.1, float(log_p[2]) - 5.0]
    group = make_group(0, [1], [make_trajectory([2, 3], rollout_logprobs=mu), make_trajectory([2, 3])])
    scores, _ = update(backend, built(Batch(version=0, groups=[group])), correction=CorrectionConfig(cap=2.0))
    assert scores.weights[0].weights.tolist() == pytest.approx([0.0, 1.10517, 2.0], abs=1e-5)
    assert scores.weights[0].truncated.tolist() == [False, False, True]


def test_a_trajectory_masked_for_its_age_still_sets_the_baseline() -> None:
    old = make_trajectory([1, 2], reward=1.0, versions=[0, 0])
    new = make_trajectory([3, 4], reward=0.0, versions=[5, 5])
    batch = built(Batch(version=5, groups=[make_group(0, [6], [old, new])]), mask_above=4)
    scores, outcome = update(BigramBackend(), batch, objective=ObjectiveConfig(normalize_by_std=False))
    assert scores.advantages.tolist() == [0.5, -0.5]
    assert len(outcome.trained_tokens.ratios) == 2


def test_a_batch_with_nothing_to_train_changes_nothing() -> None:
    batch = built(random_batch(num_groups=2, group_size=2, version=9), mask_above=None)
    sequences = [dataclasses.replace(s, mask=s.mask & False) for s in batch.sequences]
    backend = BigramBackend()
    before = backend.table.detach().clone()
    _, outcome = update(backend, dataclasses.replace(batch, sequences=sequences))
    assert outcome.steps[0].loss == 0 and not outcome.steps[0].skipped
    assert torch.equal(backend.table.detach(), before)


def test_a_policy_that_is_not_finite_is_a_skipped_step() -> None:
    backend = BigramBackend()
    with torch.no_grad():
        backend.table[:] = torch.nan
    _, outcome = update(backend, built(random_batch(num_groups=2, group_size=2)))
    assert outcome.steps[0].skipped


def test_a_better_policy_comes_out_of_it() -> None:
    good, bad = make_trajectory([1, 2], reward=1.0), make_trajectory([3, 4], reward=0.0)
    batch = built(Batch(version=0, groups=[make_group(0, [5], [good, bad])]))
    backend = BigramBackend()
    packed = PackedSequences.pack([[5, 1, 2]])
    before = float(backend.forward(packed, TEMPERATURE).logprobs.detach().sum())
    for _ in range(5):
        update(backend, batch)
    assert float(backend.forward(packed, TEMPERATURE).logprobs.detach().sum()) > before + 0.1
