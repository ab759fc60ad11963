"""What a reward function returned, made into a `Reward`: numbers checked, names in the config's order.

Owns which results mean what, and the words for those that mean nothing. Knows neither functions nor processes.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from async_rl.config.objective import AdvantageConfig
from async_rl.errors import RewardError
from async_rl.reward import Reward

_PLACE = "reward.function"
_FORMS = "return a number, a list with a number a token, a dict of numbers by name, or async_rl.reward.Reward"
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class RewardReader:
    """Reads every result of a run's reward function; a copy goes to each of its processes."""

    components: tuple[str, ...] = ()
    """Names that a result must have, and no others; empty takes any."""
    weights: tuple[float, ...] = ()
    """Of the components in a total; empty: 1 each."""

    @classmethod
    def of(cls, advantage: AdvantageConfig) -> Self:
        """What the estimator expects."""
        return cls(components=tuple(advantage.reward_components), weights=tuple(advantage.reward_weights))

    def read(self, value: object, *, num_tokens: int) -> Reward:
        """The result for a response of so many tokens, with the components that the config names, in its order.

        Raises:
            RewardError: the result is no reward, so that it is never mistaken for one.
        """
        match value:
            case Reward(total=total, components=named, per_token=per_token):
                return Reward(
                    total=_number(total, "total"),
                    components=self._select(named),
                    per_token=None if per_token is None else _read_tokens(per_token, num_tokens),
                )
            case Mapping():
                return Reward(total=self._weigh(value), components=self._select(value))
            case np.ndarray() | Sequence() if not isinstance(value, str | bytes):
                rewards = _read_tokens(value, num_tokens)
                total = _number(math.fsum(rewards), "sum")
                return Reward(total=total, components=self._select({}), per_token=rewards)
            case _:
                return Reward(total=_number(value), components=self._select({}))

    def _select(self, given: Mapping[str, object]) -> dict[str, float]:
        if self.components and set(given) != set(self.components):
            raise RewardError(
                f"the reward function returned rewards by the names {sorted(map(str, given))}, "
                f"not {sorted(self.components)}",
                place=f"{_PLACE}, advantage.reward_components",
                remedy="return a dict with exactly these names, or list those that it has in the config",
            )
        return {name: _number(given[name], name) for name in self.components}

    def _weigh(self, given: Mapping[str, object]) -> float:
        components = list(self._select(given).values()) or [_number(value, name) for name, value in given.items()]
        weights = self.weights or [1.0] * len(components)
        return _number(math.fsum(w * c for w, c in zip(weights, components, strict=True)), "total")


def _read_tokens(given: Iterable[object], num_tokens: int) -> list[float]:
    values = [_number(value, f"token {position}") for position, value in enumerate(given)]
    if len(values) != num_tokens:
        raise RewardError(
            f"the reward function returned {len(values)} rewards for a response of {num_tokens} tokens",
            place=_PLACE,
            remedy="return one for each of `tokens`, which a function with a parameter of that name is given",
        )
    return values


def _number(value: object, what: str = "") -> float:
    """As a float that is finite in the learner's float32, too."""
    if not isinstance(value, numbers.Real):
        raise RewardError(
            f"the reward function returned {what and f'as {what} '}{_shown(value)}, which is not a number",
            place=_PLACE,
            remedy=_FORMS,
        )
    number = float(value)
    if not abs(number) <= _LARGEST:
        raise RewardError(
            f"the reward function returned {what and f'as {what} '}{number:g}",
            place=_PLACE,
            remedy="return finite numbers; raise an exception where there is no reward, and another sample is taken",
        )
    return number


def _shown(value: object) -> str:
    return f"{value!r:.80}"
