"""What the correction makes of a batch: whose weights, whose ratios, and what does not train at all."""

import dataclasses

import pytest
import torch

from async_rl.config.learner import LearnerConfig
from async_rl.config.objective import (
    CorrectionConfig,
    LossConfig,
    Proximal,
    RatioLevel,
    Surrogate,
    Weighting,
)
from async_rl.protocol import Batch
from learner.packing import PackedSequences
from tests.learner.bigram_backend import BigramBackend
from tests.learner.groups import make_group, make_trajectory, random_batch
from tests.learner.updates import NO_STD, TEMPERATURE, built, config, rich_batch, update, updater_of


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
