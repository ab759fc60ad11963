"""When an evaluation begins, and which it is that goes on after the learner has gone back."""

import pytest

from async_rl.config.loop import EvaluationConfig
from async_rl.config.schema import RunConfig
from async_rl.controller.evaluations import Evaluations
from async_rl.protocol import Prompt, Sampling


def make(*, every: int = 0, prompts: int = 2) -> Evaluations:
    return Evaluations(
        RunConfig(steps=9, evaluation=EvaluationConfig(every=every)),
        held_out=[Prompt(prompt_id=i, text="", token_ids=[i], answer="") for i in range(prompts)],
        sampling=Sampling(max_tokens=4),
        next_id=10,
    )


def version_of(evaluations: Evaluations) -> int | None:
    return None if evaluations.present is None else evaluations.present.version


def test_the_first_version_that_is_published_is_evaluated_and_the_last_that_is_made() -> None:
    evaluations = make()
    evaluations.published(3)
    assert version_of(evaluations) == 3 and evaluations.present is not None and evaluations.present.first_id == 10
    evaluations.drop()
    assert evaluations.is_between
    evaluations.published(4)
    assert evaluations.committed(5) == "" and evaluations.is_between
    assert evaluations.committed(9) == "" and version_of(evaluations) == 9
    assert evaluations.next_id == 18, "two prompts, sampled and greedy, twice"


def test_between_them_what_is_published_is_evaluated_every_so_often_one_at_a_time() -> None:
    evaluations = make(every=2)
    evaluations.published(0)
    evaluations.drop()
    evaluations.published(1)
    evaluations.committed(2)
    assert version_of(evaluations) == 1, "version 2 can be sampled with only once it is published"
    assert "No evaluation at version 4" in evaluations.committed(4)
    assert version_of(evaluations) == 1


def test_without_held_out_prompts_there_is_none() -> None:
    evaluations = make(every=1, prompts=0)
    evaluations.published(0)
    assert evaluations.is_between
    evaluations.committed(9)
    assert evaluations.is_between


@pytest.mark.parametrize(("back_to", "again"), [(6, 6), (4, 4), (3, None)])
def test_after_going_back_only_what_is_not_undone_begins_again(back_to: int, again: int | None) -> None:
    evaluations = make(every=5)
    evaluations.published(0)
    evaluations.drop()
    evaluations.published(4)
    evaluations.committed(5)
    assert version_of(evaluations) == 4
    evaluations.roll_back(back_to)
    assert version_of(evaluations) is None and not evaluations.is_between
    evaluations.published(back_to)
    assert version_of(evaluations) == again
    assert evaluations.next_id == (18 if again is None else 22), "no id twice"
