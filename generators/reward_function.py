"""The user's reward function: found by name, and its signature checked.

Owns what both the command line (`--dry-run`) and the processes that call it need. Imports nothing heavy.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import cast

from async_rl.errors import RewardError
from async_rl.named_object import load_object

RewardFunction = Callable[..., object]
"""(prompt, response, answer, metadata) → what a `RewardReader` reads, or an awaitable of it; with a parameter `tokens`,
also the response's tokens."""

_PLACE = "reward.function"
_SIGNATURE = "def reward(prompt: str, response: str, answer: str, metadata: dict) -> float"
_TOKENS = "tokens"


@cache
def load_reward_function(spec: str) -> RewardFunction:
    """Imports `module:function` or `file.py:function`; a `RewardError` says what is wrong with it."""
    function = load_object(
        spec,
        kind="reward function",
        place=_PLACE,
        remedy=f"define `{_SIGNATURE}` there, or name another function",
        error=RewardError,
    )
    if not callable(function):
        raise RewardError(f"{spec} is no function", place=_PLACE, remedy=f"write it as `{_SIGNATURE}`")
    _check_signature(spec, function)
    return cast(RewardFunction, function)  # what the user wrote; its result is checked at every call


def is_async(function: RewardFunction) -> bool:
    """Whether a call gives an awaitable: an `async def`, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def takes_tokens(function: RewardFunction) -> bool:
    """Whether it asks for the response's tokens, by a parameter of that name."""
    return _TOKENS in inspect.signature(function).parameters


def _check_signature(spec: str, function: RewardFunction) -> None:
    try:
        named = {_TOKENS: list[str]()} if takes_tokens(function) else {}
        inspect.signature(function).bind("prompt", "response", "answer", {}, **named)
    except (TypeError, ValueError) as error:  # of a builtin without a signature, the latter
        raise RewardError(
            f"{spec} cannot be called: {error}", place=_PLACE, remedy=f"write it as `{_SIGNATURE}`"
        ) from error
