import json
from pathlib import Path

import pytest

from async_rl.evaluation import EvaluationResult
from async_rl.ledger import Counts
from async_rl.protocol import Activation, GeneratorStats, Histogram, StepMetrics, WeightManifest
from async_rl.summary import Exit, Summary, SummaryBuilder

COUNTS = Counts(issued=9, trained=2, stale=1, filtered=1, failed=1, queued=1, leased=1, delivered=1, batched=1)
KEYS = {
    "reward": {"start", "end"},
    "greedy": {"start", "end"},
    "steps": set(),
    "trained_tokens": set(),
    "wall_s": set(),
    "tokens_per_s": {"generators", "learner"},
    "idle": {"generators", "learner"},
    "staleness": {"mean", "p95", "max", "histogram"},
    "importance": {"mean", "max", "truncated_share", "ess"},
    "mu_prox": {"max_abs", "k3"},
    "ledger": {"issued", "trained", "stale", "filtered", "failed", "queued", "leased", "delivered", "batched"},
    "weights": {"gather_s", "transfer_s", "pause_s", "active_s"},
    "exit": set(),
}


def metrics(tokens: int, staleness: list[int], *, step_s: float = 1.0, weight: float = 1.0) -> StepMetrics:
    return StepMetrics(
        scalars={
            "learner/tokens": float(tokens),
            "learner/step_s": step_s,
            "importance/mean": weight,
            "importance/max": 2 * weight,
            "importance/truncated_share": 0.1 * weight,
            "importance/ess": 0.5 * weight,
            "mu_prox/max_abs": 0.01 * weight,
            "mu_prox/k3": 0.001 * weight,
        },
        histograms={
            "staleness": Histogram(edges=[float(n) for n in range(len(staleness) + 1)], counts=staleness),
        },
    )


def stats(sampled: int, elapsed_s: float, idle_s: float) -> GeneratorStats:
    return GeneratorStats(
        active_version=0,
        running_requests=0,
        sampled_tokens=sampled,
        elapsed_s=elapsed_s,
        idle_s=idle_s,
        paused_s=0.0,
        reward_errors=0,
        reward_timeouts=0,
        resampled=0,
    )


def manifest(version: int, gather_s: float, transfer_s: float) -> WeightManifest:
    return WeightManifest(
        version=version,
        transport="shm",
        location="",
        generation=version,
        tensors=[],
        num_bytes=0,
        gather_s=gather_s,
        transfer_s=transfer_s,
    )


def evaluation(version: int, reward: float, greedy: float) -> EvaluationResult:
    return EvaluationResult(version=version, reward=reward, greedy=greedy, num_answers=1, num_failed=0)


def whole_run() -> Summary:
    builder = SummaryBuilder()
    builder.published(manifest(0, 9.0, 9.0), 1.0)
    builder.activated(Activation(version=0, transfer_s=9.0, pause_s=9.0), 2.0)
    builder.reported("g0", stats(100, 5.0, 5.0))
    builder.evaluated(evaluation(0, 0.25, 0.5))
    builder.training_began(10.0)
    builder.stepped(1, metrics(30, [30], step_s=3.0), 14.0)
    builder.published(manifest(1, 0.5, 0.25), 14.0)
    builder.activated(Activation(version=1, transfer_s=0.5, pause_s=0.125), 15.0)
    builder.reported("g0", stats(200, 10.0, 6.0))
    builder.stepped(2, metrics(10, [2, 6, 2], step_s=2.0, weight=2.0), 20.0)
    builder.training_ended(20.0)
    builder.reported("g0", stats(900, 20.0, 16.0))
    builder.evaluated(evaluation(2, 0.75, 1.0))
    return builder.build(COUNTS, Exit.COMPLETED)


def test_a_run_becomes_its_numbers() -> None:
    summary = whole_run()
    assert (summary.reward.start, summary.reward.end) == (0.25, 0.75)
    assert (summary.greedy.start, summary.greedy.end) == (0.5, 1.0)
    assert (summary.steps, summary.trained_tokens, summary.wall_s) == (2, 40, 10.0)
    assert (summary.tokens_per_s.generators, summary.tokens_per_s.learner) == (10.0, 4.0)
    assert (summary.idle.generators, summary.idle.learner) == (0.2, 0.5)
    assert summary.staleness.histogram == [32, 6, 2]
    assert (summary.staleness.mean, summary.staleness.p95, summary.staleness.max) == (0.25, 1.0, 2)
    assert summary.importance.mean == pytest.approx((30 * 1 + 10 * 2) / 40)
    assert summary.importance.max == 4.0
    assert summary.importance.truncated_share == pytest.approx(0.125)
    assert summary.importance.ess == pytest.approx(0.625)
    assert summary.mu_prox.max_abs == 0.02
    assert summary.mu_prox.k3 == pytest.approx(0.00125)
    weights = summary.weights
    assert (weights.gather_s, weights.transfer_s, weights.pause_s, weights.active_s) == (0.5, 0.75, 0.125, 1.0)
    assert summary.exit is Exit.COMPLETED


def test_the_file_has_exactly_the_documented_keys() -> None:
    written = json.loads(whole_run().to_json())
    assert {key: set(value) if isinstance(value, dict) else set() for key, value in written.items()} == KEYS
    assert written["exit"] == "completed"


def test_the_file_reads_back_equal() -> None:
    summary = whole_run()
    assert Summary.from_json(summary.to_json()) == summary


def test_the_documentation_names_every_key(repository: Path) -> None:
    page = (repository / "docs" / "summary.md").read_text(encoding="utf-8")
    missing = [
        f"{key}.{part}" for key, parts in KEYS.items() for part in parts if f".{part}`" not in page and part not in page
    ]
    assert not missing
    assert all(f"`{key}" in page for key in KEYS)


def test_a_run_that_never_began_is_nulls() -> None:
    summary = SummaryBuilder().build(COUNTS, Exit.FAILED)
    assert (summary.reward.start, summary.wall_s, summary.idle.learner, summary.staleness.mean) == (None,) * 4
    assert summary.staleness.histogram == []
    assert "NaN" not in summary.to_json().decode()


def test_a_stopped_run_has_no_reward_at_its_end() -> None:
    builder = SummaryBuilder()
    builder.evaluated(evaluation(0, 0.25, 0.5))
    builder.training_began(0.0)
    builder.stepped(1, metrics(10, [10]), 1.0)
    builder.evaluated(evaluation(1, 0.3, 0.5))
    builder.stepped(2, metrics(10, [10]), 2.0)
    reward = builder.build(COUNTS, Exit.STOPPED).reward
    assert (reward.start, reward.end) == (0.25, None)


def test_an_evaluation_without_answers_is_null() -> None:
    builder = SummaryBuilder()
    builder.evaluated(evaluation(0, float("nan"), 0.5))
    summary = builder.build(COUNTS, Exit.STOPPED)
    assert (summary.reward.start, summary.greedy.start) == (None, 0.5)


def test_a_batch_that_is_rejected_whole_leaves_the_means_of_the_others() -> None:
    builder = SummaryBuilder()
    builder.training_began(0.0)
    builder.stepped(1, metrics(10, [10], weight=0.5), 1.0)
    builder.stepped(2, metrics(0, [], weight=float("nan")), 2.0)
    summary = builder.build(COUNTS, Exit.STOPPED)
    assert (summary.importance.mean, summary.steps, summary.trained_tokens) == (0.5, 2, 10)


def test_a_generator_that_starts_again_counts_from_nothing() -> None:
    builder = SummaryBuilder()
    builder.reported("g0", stats(100, 10.0, 0.0))
    builder.training_began(0.0)
    builder.reported("g0", stats(150, 15.0, 0.0))
    builder.reported("g0", stats(20, 2.0, 1.0))
    builder.reported("g0", stats(50, 5.0, 1.0))
    assert builder.generators.sampled_tokens == 100
    assert builder.generators.elapsed_s == 10.0
    assert builder.generators.idle_s == 1.0


def test_a_resumed_run_goes_on_counting_steps_and_tokens() -> None:
    builder = SummaryBuilder(trained_tokens=1000, version=10)
    builder.training_began(0.0)
    builder.stepped(11, metrics(10, [10]), 2.0)
    summary = builder.build(COUNTS, Exit.COMPLETED)
    assert (summary.steps, summary.trained_tokens, summary.tokens_per_s.learner) == (11, 1010, 5.0)


def test_what_a_restart_undid_is_in_no_number_of_what_was_trained() -> None:
    builder = SummaryBuilder(trained_tokens=1000, version=10)
    builder.training_began(0.0)
    builder.evaluated(evaluation(10, 0.25, 0.5))
    builder.stepped(11, metrics(30, [30]), 1.0)
    builder.checkpoint_begun(11)
    builder.stepped(12, metrics(10, [2, 6, 2], weight=9.0), 2.0)
    builder.evaluated(evaluation(12, 0.5, 0.5))
    builder.training_ended(2.0)
    builder.rolled_back(11, trained_tokens=1030, is_training=True)
    undone = builder.build(COUNTS, Exit.FAILED)
    assert (undone.steps, undone.trained_tokens, undone.staleness.histogram) == (11, 1030, [30])
    assert (undone.importance.mean, undone.importance.max, undone.mu_prox.max_abs) == (1.0, 2.0, 0.01)
    assert undone.reward.end is None
    builder.stepped(12, metrics(20, [0, 20]), 8.0)
    builder.evaluated(evaluation(12, 0.75, 0.5))
    summary = builder.build(COUNTS, Exit.COMPLETED)
    assert (summary.steps, summary.trained_tokens, summary.staleness.histogram) == (12, 1050, [30, 20])
    assert (summary.wall_s, summary.reward.end) == (8.0, 0.75)
    builder.rolled_back(11, trained_tokens=1030, is_training=True)
    assert builder.build(COUNTS, Exit.FAILED).staleness.histogram == [30], "once more from the same checkpoint"
