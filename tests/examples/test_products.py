"""The example of an own task does what its text says, through the options that name it."""

from pathlib import Path

import pytest

from async_rl.data.source import load_task
from generators.reward_function import load_reward_function

FILE = Path(__file__).resolve().parents[2] / "examples" / "products" / "products.py"


def test_all_products_are_dealt_out_and_the_held_out_ones_are_apart() -> None:
    task = load_task(f"{FILE}:Products")
    train = task.rows(is_held_out=False, count=1000, seed=0)
    held_out = task.rows(is_held_out=True, count=1000, seed=1)
    assert (len(train), len(held_out)) == (648, 72)
    assert not {str(row.prompt) for row in train} & {str(row.prompt) for row in held_out}
    for row in [*train, *held_out]:
        a, b = str(row.prompt).removesuffix("=").split("*")
        assert int(a) * int(b) == int(row.answer)
        assert set(str(row.prompt) + row.answer) <= set(task.alphabet)


@pytest.mark.parametrize(("response", "value"), [("266", 1.0), ("267", 0.2), ("133", 0.0), ("26", 0.0), ("", 0.0)])
def test_a_near_miss_earns_a_part(response: str, value: float) -> None:
    assert load_reward_function(f"{FILE}:reward")("7*38=", response, "266", {}) == pytest.approx(value)
