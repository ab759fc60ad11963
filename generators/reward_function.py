"""The user's reward function: found by name, its signature checked, its result made a number.

Owns what both the command line (`--dry-run`) and the processes that call it need. Imports nothing heavy.
"""

import importlib
import importlib.util
import inspect
import math
import numbers
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from async_rl.errors import RewardError
from async_rl.protocol import Scalar

RewardFunction = Callable[[str, str, str, Mapping[str, Scalar]], float | Awaitable[float]]
"""(prompt, response, answer, metadata) → reward; plain or async."""

_PLACE = "reward.function"
_SIGNATURE = "def reward(prompt: str, response: str, answer: str, metadata: dict) -> float"


@cache
def load_reward_function(spec: str) -> RewardFunction:
    """Imports `module:function` or `file.py:function`; a `RewardError` says what is wrong with it."""
    location, separator, name = spec.rpartition(":")
    if not separator or not location or not name:
        raise RewardError(
            f"{spec!r} names no reward function", place=_PLACE, remedy="give `module:function` or `file.py:function`"
        )
    module = _import_file(location) if location.endswith(".py") else _import_module(location)
    if name not in vars(module):
        raise RewardError(
            f"{location} has no {name!r}", place=_PLACE, remedy=f"define `{_SIGNATURE}` there, or name another function"
        )
    function = vars(module)[name]
    _check_signature(spec, function)
    return function  # type: ignore[no-any-return]  # what the user wrote; its result is checked at every call


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


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise _not_importable(name, error) from error


def _import_file(location: str) -> ModuleType:
    path = Path(location).resolve()
    if not path.is_file():
        raise RewardError(
            f"there is no file {location}", place=_PLACE, remedy=f"give a path that exists, from {Path.cwd()}"
        )
    module_name = f"reward_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's file may raise anything while it is imported
        raise _not_importable(location, error) from error
    return module


def _not_importable(location: str, error: Exception) -> RewardError:
    return RewardError(
        f"{location} does not import: {type(error).__name__}: {error}",
        place=_PLACE,
        remedy="make it import in this environment, or name another function",
    )


def _check_signature(spec: str, function: object) -> None:
    if not callable(function):
        raise RewardError(f"{spec} is no function", place=_PLACE, remedy=f"write it as `{_SIGNATURE}`")
    try:
        inspect.signature(function).bind("prompt", "response", "answer", {})
    except TypeError as error:
        raise RewardError(
            f"{spec} cannot be called: {error}", place=_PLACE, remedy=f"write it as `{_SIGNATURE}`"
        ) from error
