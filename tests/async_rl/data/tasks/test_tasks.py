"""Every shipped task: its rows are right, distinct, and written with its alphabet."""

from collections.abc import Callable

import pytest

from async_rl.data.row import Row, Task
from async_rl.data.tasks.addition import Addition
from async_rl.data.tasks.careless_sorting import CarelessSorting
from async_rl.data.tasks.exact_match import reward
from async_rl.data.tasks.reversal import Reversal
from async_rl.data.tasks.sorting import Sorting


def is_sum(prompt: str, answer: str) -> bool:
    left, right = prompt.removesuffix("=").split("+")
    return prompt.endswith("=") and int(left) + int(right) == int(answer)


def is_sorted(prompt: str, answer: str) -> bool:
    return sorted(prompt.removesuffix(":")) == list(answer)


def is_reversed(prompt: str, answer: str) -> bool:
    return prompt == "".join(reversed(answer)) + ":"


TASKS: list[tuple[Task, Callable[[str, str], bool]]] = [
    (Addition(), is_sum),
    (Addition(digits=3), is_sum),
    (Sorting(length=5), is_sorted),
    (Reversal(length=4), is_reversed),
]


@pytest.mark.parametrize(("task", "is_right"), TASKS, ids=lambda v: repr(v) if not callable(v) else "")
@pytest.mark.parametrize("is_held_out", [False, True])
def test_answers_are_right_prompts_distinct_and_characters_known(
    task: Task, is_right: Callable[[str, str], bool], is_held_out: bool
) -> None:
    rows = task.rows(is_held_out=is_held_out, count=200, seed=3)
    prompts = [str(row.prompt) for row in rows]
    assert len(set(prompts)) == 200
    assert all(is_right(str(row.prompt), row.answer) for row in rows)
    assert set("".join(prompts) + "".join(row.answer for row in rows)) <= set(task.alphabet)


def test_a_sum_looks_like_this() -> None:
    row = Addition(digits=1).rows(is_held_out=True, count=1, seed=0)[0]
    assert row == Row(prompt="2+7=", answer="9", task="addition")


def test_every_sum_of_the_bound_is_there() -> None:
    rows = [
        row for held_out in (False, True) for row in Addition(digits=1).rows(is_held_out=held_out, count=99, seed=0)
    ]
    assert {str(row.prompt) for row in rows} == {f"{a}+{b}=" for a in range(10) for b in range(10)}


@pytest.mark.parametrize(
    ("response", "value"), [("122", 1.0), (" 122\n", 1.0), ("12", 0.0), ("1222", 0.0), ("122 ", 1.0), ("", 0.0)]
)
def test_exact_match_is_one_for_the_answer_alone(response: str, value: float) -> None:
    assert reward("37+85=", response, "122", {}) == value


def test_a_careless_pupil_errs_as_often_as_said_in_the_two_ways_that_are_said() -> None:
    pupil = CarelessSorting(length=5, mistake_share=0.75)
    rows = pupil.rows(is_held_out=False, count=20_000, seed=1)
    right = Sorting(length=5).rows(is_held_out=False, count=20_000, seed=1)
    assert [row.prompt for row in rows] == [row.prompt for row in right]
    falling = sum(row.answer == r.answer[::-1] != r.answer for row, r in zip(rows, right, strict=True))
    short = sum(row.answer == "".join(sorted(set(r.answer))) != r.answer for row, r in zip(rows, right, strict=True))
    has_repeats = 1 - 0.3024  # 10·9·8·7·6 of 100,000 strings have none
    assert falling / len(rows) == pytest.approx(0.375, abs=0.015)
    assert short / len(rows) == pytest.approx(0.375 * has_repeats, abs=0.015)


def test_a_pupil_without_mistakes_is_right() -> None:
    rows = CarelessSorting(mistake_share=0.0).rows(is_held_out=True, count=100, seed=0)
    assert rows == Sorting().rows(is_held_out=True, count=100, seed=0)
