"""The reward function is found by name, and what is wrong with it is said before anything starts."""

from pathlib import Path

import pytest

from async_rl.errors import RewardError
from generators.reward_function import is_async, load_reward_function, takes_tokens
from tests.generators import reward_functions

MODULE = reward_functions.__name__
FILE = reward_functions.__file__


@pytest.mark.parametrize("location", [MODULE, FILE])
def test_a_function_is_found_in_a_module_and_in_a_file(location: str) -> None:
    function = load_reward_function(f"{location}:exact")
    assert function("2+2", "4", "4", {}) == 1.0


def test_a_file_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def reward(prompt, response, answer, metadata):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    assert load_reward_function("mine.py:reward")("", "", "", {}) == 0.5


def test_parameters_with_defaults_may_follow() -> None:
    assert load_reward_function(f"{MODULE}:more_with_defaults")("", "", "", {}) == 2.0


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", "names no reward function"),
        ("json", "names no reward function"),
        (":reward", "names no reward function"),
        ("no_such_module:reward", "does not import: ModuleNotFoundError"),
        ("no/such/file.py:reward", "there is no file no/such/file.py"),
        (f"{MODULE}:missing", "has no 'missing'"),
        (f"{MODULE}:NOT_CALLABLE", "is no function"),
        (f"{MODULE}:too_few", "cannot be called: too many positional arguments"),
        ("builtins:min", "cannot be called: no signature found"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place_and_a_remedy(spec: str, problem: str) -> None:
    with pytest.raises(RewardError, match=problem) as raised:
        load_reward_function(spec)
    assert raised.value.place == "reward.function"
    assert raised.value.remedy


def test_a_file_that_fails_to_import_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_library\n")
    with pytest.raises(RewardError, match="No module named 'no_such_library'"):
        load_reward_function(f"{broken}:reward")


def test_async_functions_and_objects_are_told_from_plain_ones() -> None:
    assert not is_async(load_reward_function(f"{MODULE}:exact"))
    assert is_async(load_reward_function(f"{MODULE}:misbehave_async"))
    assert is_async(load_reward_function(f"{MODULE}:judge"))


def test_functions_that_ask_for_tokens_are_told_from_others() -> None:
    assert takes_tokens(load_reward_function(f"{MODULE}:by_token"))
    assert takes_tokens(load_reward_function(f"{MODULE}:by_token_async"))
    assert not takes_tokens(load_reward_function(f"{MODULE}:exact"))
