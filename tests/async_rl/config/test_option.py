"""Values as one writes them in YAML, and as trackers get them."""

import pytest

from async_rl.config.option import plain_values, written
from async_rl.config.schema import RunConfig


@pytest.mark.parametrize(
    ("value", "words"),
    [(True, "true"), (0.5, "0.5"), ("a b", "a b"), ([], "[]"), (["a:1", "b"], "[a:1, b]"), ([1.0, 0.5], "[1.0, 0.5]")],
    ids=str,
)
def test_a_value_as_one_writes_it_in_yaml(value: object, words: str) -> None:
    assert written(value) == words


def test_trackers_get_numbers_as_numbers_and_everything_else_as_text() -> None:
    values = plain_values(RunConfig())
    assert (values["steps"], values["data.shuffle"]) == (100, True)
    assert (values["correction.weighting"], values["correction.reject"]) == ("truncated", "[]")
