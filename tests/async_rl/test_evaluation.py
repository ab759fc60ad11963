"""An evaluation under its own ledger: every held-out prompt once sampled and once greedy."""

import math

from async_rl.evaluation import Evaluation
from async_rl.protocol import Lease, Prompt, Purpose, Sampling, TrajectoryGroup
from tests.async_rl.groups import make_group

PROMPTS = [Prompt(prompt_id=i, text=str(i), token_ids=[i], answer="") for i in range(2)]


def begin(*, version: int = 3, samples: int = 4, first_id: int = 10) -> Evaluation:
    return Evaluation(
        version=version,
        prompts=PROMPTS,
        sampling=Sampling(max_tokens=7, temperature=0.8, top_p=0.9),
        samples_per_prompt=samples,
        first_id=first_id,
        max_attempts=2,
    )


def lease(evaluation: Evaluation, *, version: int = 3, wanted: int = 9) -> list[Lease]:
    return evaluation.lease("g", version, wanted=wanted, now_s=0.0, timeout_s=5.0)


def answer(granted: Lease, *rewards: float) -> TrajectoryGroup:
    return make_group(granted.group_id, attempt=granted.attempt, incarnation="g", rewards=rewards)


def test_each_prompt_is_answered_once_sampled_and_once_greedy() -> None:
    granted = lease(begin())
    assert [(g.prompt.prompt_id, g.group_size, g.sampling.temperature) for g in granted] == [
        (0, 4, 0.8),
        (1, 4, 0.8),
        (0, 1, 0.0),
        (1, 1, 0.0),
    ]
    assert {g.purpose for g in granted} == {Purpose.EVALUATE}
    assert {g.sampling.max_tokens for g in granted} == {7}
    assert [g.group_id for g in granted] == [10, 11, 12, 13]


def test_only_the_weights_that_are_evaluated_or_newer_ones_may_answer() -> None:
    evaluation = begin(version=3)
    assert lease(evaluation, version=2) == []
    assert len(lease(evaluation, version=4, wanted=1)) == 1


def test_the_result_is_the_mean_of_each_mode_when_all_have_answered() -> None:
    evaluation = begin(samples=2)
    first, second, *greedy = lease(evaluation)
    assert evaluation.deliver(answer(first, 1.0, 0.0))
    assert evaluation.deliver(answer(second, 1.0, 1.0))
    was_done = []
    for granted in greedy:
        was_done.append(evaluation.is_done)
        assert evaluation.deliver(answer(granted, 0.5))
    assert [*was_done, evaluation.is_done] == [False, False, True]
    result = evaluation.result
    assert (result.version, result.reward, result.greedy, result.num_answers) == (3, 0.75, 0.5, 6)


def test_an_answer_counts_once_and_never_for_another_evaluation() -> None:
    earlier = begin(first_id=10)
    granted = lease(earlier)[0]
    later = begin(first_id=earlier.next_first_id)
    assert later.first_id == 14
    assert earlier.deliver(answer(granted, 1.0))
    assert not earlier.deliver(answer(granted, 1.0))
    lease(later)
    assert not later.deliver(answer(granted, 1.0))


def test_a_prompt_that_fails_counts_in_no_mean_and_holds_nobody_up() -> None:
    evaluation = begin()
    for _ in range(2):
        for granted in lease(evaluation):
            evaluation.ledger.give_back(granted.group_id, granted.attempt, "g", "no reward")
    assert evaluation.is_done
    result = evaluation.result
    assert math.isnan(result.reward) and math.isnan(result.greedy)
    assert (result.num_answers, result.num_failed) == (0, 4)
