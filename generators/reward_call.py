"""One call of a reward function: what it is given, and how it fails.

Owns what travels between a generator and the processes of its reward function. Knows neither.
"""

import os
import traceback
from dataclasses import dataclass

from async_rl.errors import AsyncRLError, RewardError
from async_rl.protocol import Scalar
from generators.reward_function import RewardFunction


@dataclass(frozen=True, kw_only=True)
class RewardCall:
    """What a call is given."""

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


class RewardFailed(AsyncRLError):
    """One call gave no reward: it raised, took too long, returned what is no reward, or its process died."""

    def __init__(self, reason: str, cause: str) -> None:
        """`cause` is what many failures have in common: a line of the user's code, a time limit, an exit code."""
        super().__init__(reason, cause)
        self.reason = reason
        self.cause = cause

    def __str__(self) -> str:
        return self.reason

    @classmethod
    def by(cls, error: Exception | SystemExit) -> "RewardFailed":
        """In words, since the user's exceptions need not survive pickling."""
        if isinstance(error, RewardError):
            return cls(f"{error.problem}; {error.remedy}", "no reward")
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        return cls(f"{type(error).__name__}: {error} ({line})", f"{type(error).__name__} ({line})")
