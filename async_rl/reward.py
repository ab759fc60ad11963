"""The richest thing that a reward function may return; docs/rewards.md shows the others.

Owns the word. Reward functions import it, so it imports nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Reward:
    """What one response earned, where one number does not say it all.

    return Reward(total=1.0, components={"correct": 1.0, "format": 0.0}, per_token=[0.0, 0.5, 0.5])
    """

    total: float
    """What metrics, evaluations and `advantage.filter_zero_signal` look at; it trains where `per_token` is missing."""
    components: Mapping[str, float] = field(default_factory=dict)
    """By the names in `advantage.reward_components`."""
    per_token: Sequence[float] | None = None
    """One for each token of the response: what trains in the total's place."""
