"""The user's reward function: found by name, its signature checked, its result made a number.

Owns what both the command line (`--dry-run`) and the processes that call it need. Imports nothing heavy.
"""

import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import cast

from async_rl.errors import RewardError
from async_rl.named_object import load_object
from async_rl.protocol import Scalar

RewardFunction = Callable[[str, str, str, Mapping[str, Scalar]], float | Awaitable[float]]
"""(prompt, response, answer, metadata) → reward; plain or async."""

_PLACE = "reward.function"
_SIGNATURE = "def reward(prompt: str, response: str, answer: str, metadata: dict) -> float"


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
    _check_signature(spec, function)
    return cast(RewardFunction, function)  # what the user wrote; its result is checked at every call


def is_async(function: RewardFunction) -> bool:
    """Whether a call gives an awaitable: an `async def`, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def to_reward(value: object) -> float:
    """The value as a finite float; a ValueError for anything else, so that it is never mistaken for a reward."""
    if not isinstance(value, numbers.Real):
        raise ValueError(f"the reward function returned {value!r:.80}, which is not a number")
    if not math.isfinite(value):
        raise ValueError(f"the reward function returned {value}")
    return float(value)


def _check_signature(spec: str, function: object) -> None:
    if not callable(function):
        raise RewardError(f"{spec} is no function", place=_PLACE, remedy=f"write it as `{_SIGNATURE}`")
    try:
        inspect.signature(function).bind("prompt", "response", "answer", {})
    except TypeError as error:
        raise RewardError(
            f"{spec} cannot be called: {error}", place=_PLACE, remedy=f"write it as `{_SIGNATURE}`"
        ) from error
