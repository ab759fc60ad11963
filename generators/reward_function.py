"""The user's reward function: found by name, its signature checked, called with what it asks for.

Owns what both the command line (`--dry-run`) and the processes that call it need. Imports nothing heavy.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

from async_rl.errors import RewardError
from async_rl.named_object import load_object
from async_rl.protocol import Scalar

RewardFunction = Callable[..., object]
"""(prompt, response, answer, metadata) → what a `RewardReader` reads, or an awaitable of it; with a parameter `tokens`,
also the response's tokens."""

_PLACE = "reward.function"
_SIGNATURE = "def reward(prompt: str, response: str, answer: str, metadata: dict) -> float"
_TOKENS = "tokens"


@dataclass(frozen=True, kw_only=True)
class RewardCall:
    """What one call is given."""

    prompt: str
    response: str
    answer: str
    metadata: dict[str, Scalar]
    num_tokens: int
    tokens: list[str] | None
    """Text of each of the response's tokens, "" for special ones; None unless the function takes them."""

    def make(self, function: RewardFunction) -> object:
        """The function's result, or an awaitable of it."""
        arguments = (self.prompt, self.response, self.answer, self.metadata)
        return function(*arguments) if self.tokens is None else function(*arguments, tokens=self.tokens)


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
        tokens: list[str] | None = [] if takes_tokens(function) else None
        call = RewardCall(prompt="", response="", answer="", metadata={}, num_tokens=0, tokens=tokens)
        call.make(inspect.signature(function).bind)
    except (TypeError, ValueError) as error:  # of a builtin without a signature, the latter
        raise RewardError(
            f"{spec} cannot be called: {error}", place=_PLACE, remedy=f"write it as `{_SIGNATURE}`"
        ) from error
