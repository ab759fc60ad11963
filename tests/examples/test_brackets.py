"""The example of an own task does what its text says, through the options that name it."""

from pathlib import Path

import pytest

from async_rl.data.source import load_task
from generators.reward_function import load_reward_function

FILE = Path(__file__).resolve().parents[2] / "examples" / "brackets" / "brackets.py"


def test_all_strings_are_dealt_out_and_the_held_out_ones_are_apart() -> None:
    task = load_task(f"{FILE}:Brackets")
    train = task.rows(is_held_out=False, count=10_000, seed=0)
    held_out = task.rows(is_held_out=True, count=10_000, seed=1)
    assert len(train) + len(held_out) == 81 + 243 + 729 + 2187 + 6561
    assert not {str(row.prompt) for row in train} & {str(row.prompt) for row in held_out}


def test_every_answer_closes_its_prompt() -> None:
    for row in load_task(f"{FILE}:Brackets").rows(is_held_out=True, count=1000, seed=0):
        text = str(row.prompt) + row.answer
        while any(pair in text for pair in ("()", "[]", "{}")):
            text = text.replace("()", "").replace("[]", "").replace("{}", "")
        assert text == ""


@pytest.mark.parametrize(
    ("response", "value"), [("}])]", 1.0), ("}])", 0.375), ("}])]]", 0.5), ("}))]", 0.125), ("]", 0.0), ("", 0.0)]
)
def test_a_near_miss_earns_a_part(response: str, value: float) -> None:
    assert load_reward_function(f"{FILE}:reward")("[([{", response, "}])]", {}) == value
