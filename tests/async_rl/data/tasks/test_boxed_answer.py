import pytest

from async_rl.data.tasks.boxed_answer import last_boxed, reward


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        ("so it is \\boxed{42}.", "42", 1.0),
        ("\\boxed{1} no, \\boxed{ 1, 2 }", "1,2", 1.0),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1.0),
        ("\\boxed{42} and then \\boxed{41}", "42", 0.0),
        ("the answer is 42", "42", 0.0),
        ("\\boxed{42", "42", 0.0),
        ("", "", 0.0),
    ],
)
def test_the_last_box_counts(response: str, answer: str, value: float) -> None:
    assert reward("", response, answer, {}) == value


def test_a_box_ends_where_its_own_brace_closes() -> None:
    assert last_boxed("\\boxed{a{b}c}d}") == "a{b}c"
