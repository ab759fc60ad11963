"""Whole runs of what an objective asks of the loop: a critic, a reference, greedy answers, named rewards, arrivals."""

import math
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.conftest import Launch, RunProcess
from tests.integration.test_run import metric

pytestmark = pytest.mark.integration

REWARDS = Path(__file__).with_name("rewards.py")


def assert_sound(run: RunProcess, steps: int) -> None:
    """It ended well, every number is one, and every group is accounted for."""
    assert run.exit_code == 0, run.output
    assert len(run.trained) == steps
    for name in ("loss", "grad_norm", "importance/ess", "advantage/abs_mean"):
        assert all(math.isfinite(value) for value in metric(run, name)), name
    assert sum(metric(run, "skipped")) == 0
    assert run.summary.ledger.balanced


def test_a_critic_and_an_adaptive_kl_in_the_reward_go_on_from_a_checkpoint(launch: Launch) -> None:
    options = {
        "advantage__estimator": "gae",
        "kl__coef": 0.1,
        "kl__placement": "reward",
        "kl__estimator": "k1",
        "kl__controller": "adaptive",
        "kl__horizon": 32,
        "checkpoint__every": 4,
    }
    first = launch(steps=4, **options).wait()
    assert_sound(first, 4)
    before = metric(first, "reference/kl_coef")
    second = launch("--resume", "auto", steps=8, **options).wait()
    assert_sound(second, 8)
    after = metric(second, "reference/kl_coef")
    assert after[:4] == before and before[0] == 0.1
    # Every batch moves it by at most a fifth of its share of the horizon, so a restart at 0.1 would show.
    assert all(0 < abs(b / a - 1) <= 0.2 * 16 / 32 + 1e-9 for a, b in pairwise(after))
    # A critic that had forgotten would say 0 again.
    assert metric(second, "critic/value_mean")[0] == 0 and metric(second, "critic/value_mean")[4] != 0


def test_remax_learns_from_what_beats_the_greedy_answer_and_drops_what_does_not(launch: Launch) -> None:
    run = launch(
        steps=6,
        advantage__estimator="remax",
        advantage__filter_zero_signal=True,
        reward__function=f"{REWARDS}:seldom",
    ).wait()
    assert_sound(run, 6)
    assert all(0 <= value <= 1 for value in metric(run, "reward/greedy"))
    assert max(metric(run, "advantage/zero_share")) < 1
    assert run.summary.ledger.filtered > 0, "no group was without signal, so nothing was shown"
    assert run.summary.ledger.trained == 24, "what was filtered was not generated anew"


def test_named_rewards_are_learned_from_and_told_by_name(launch: Launch) -> None:
    run = launch(
        steps=4,
        advantage__estimator="gdpo",
        advantage__reward_components="[even,short]",
        advantage__reward_weights="[1.0,0.5]",
        reward__function=f"{REWARDS}:named",
    ).wait()
    assert_sound(run, 4)
    even, short, total = (metric(run, f"reward/{name}") for name in ("component/even", "component/short", "mean"))
    assert total == pytest.approx([a + 0.5 * b for a, b in zip(even, short, strict=True)], abs=1e-5)


def test_what_is_scored_on_arrival_differs_from_the_engine_by_its_numerics_alone(launch: Launch) -> None:
    run = launch(
        "correction=arrival_split",
        steps=30,
        staleness__max=2,
        staleness__depth=1,
        learner__groups_per_step=2,
        learner__optimizer__lr=0.01,
        generation__max_new_tokens=24,
    ).wait()
    assert_sound(run, 30)
    shares, mismatches = metric(run, "decomposition/scored_share"), metric(run, "decomposition/mismatch_max_abs")
    assert sum(share > 0 for share in shares) >= 5, "hardly anything was scored in time"
    assert max(mismatches) <= 1e-4
    # The tokens that older versions sampled are further off than that, and weighed as one.
    assert max(metric(run, "mu_prox/max_abs")) > 1e-2
