"""Reward functions for generators in tests, which count how often they were asked, and fail by prompt."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from async_rl.protocol import (
    Scalar,
)
from async_rl.reward import Reward

calls: Counter[str] = Counter()
"""How often they were asked since a test began, by prompt."""


async def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """Prompt 13 fails always, 7 on its first call, 9 is no number on its first call, 5 hangs on its first call."""
    calls[prompt] += 1
    if prompt == "13" or (prompt == "7" and calls[prompt] == 1):
        raise ValueError(f"cannot judge {prompt}")
    if prompt == "9" and calls[prompt] == 1:
        return float("nan")
    if prompt == "5" and calls[prompt] == 1:
        await asyncio.sleep(60)
    return float(len(response.split()))


REWARD = f"{__name__}:reward"
PICKY = f"{__name__}:picky"
RICH = f"{__name__}:rich"


async def picky(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """The number of tokens; the first response of five fails."""
    num_tokens = len(response.split())
    calls[str(num_tokens)] += 1
    if num_tokens == 5 and calls["5"] == 1:
        raise ValueError("no verdict")
    return float(num_tokens)


async def rich(
    prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar], tokens: Sequence[str]
) -> Reward:
    """Everything at once."""
    return Reward(total=9.0, components={"b": 0.5, "a": 0.25}, per_token=[float(token) for token in tokens])
