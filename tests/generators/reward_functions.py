"""Reward functions, good and bad. `misbehave` does what the prompt says."""

import asyncio
import os
import sys
import time
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from async_rl.protocol import Scalar
from async_rl.reward import Reward

NOT_CALLABLE = 3


class StubbornError(Exception):
    """Cannot be pickled back: its constructor wants more than it stores."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__("stubborn")


def exact(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    return float(response == answer)


def misbehave(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> object:
    match prompt:
        case "raise":
            raise KeyError("no such key")
        case "stubborn":
            raise StubbornError(1, 2)
        case "exit":
            sys.exit(3)
        case "leave":
            os._exit(3)
        case "orphan":
            if os.fork() == 0:
                time.sleep(10)
            os._exit(5)
        case "die":
            os.kill(os.getpid(), 9)
        case "sleep":
            time.sleep(60)
        case "metadata":
            return metadata["level"]
    return RESULTS.get(prompt, 1.0)


RESULTS: dict[str, object] = {
    "nan": float("nan"),
    "inf": float("inf"),
    "none": None,
    "text": "1.0",
    "true": True,
    "numpy": np.float32(0.5),
    "pid": os.getpid(),
    "long": [0.0] * 300_000,
    "two tokens": [0.0, 1.0],
    "rich": Reward(total=2.0, components={"a": 1.0}, per_token=[0.5]),
}


async def misbehave_async(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> object:
    if prompt == "sleep":
        await asyncio.sleep(60)
    if prompt == "own timeout":
        raise TimeoutError("the judge did not answer")
    return misbehave(prompt, response, answer, metadata)


def lethal(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    if "die" in prompt:
        os._exit(7)
    return 1.0


def by_token(
    prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar], tokens: Sequence[str]
) -> list[float]:
    """The length of each token."""
    assert "".join(tokens) == response
    return [float(len(token)) for token in tokens]


async def by_token_async(
    prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar], *, tokens: Sequence[str]
) -> list[float]:
    return by_token(prompt, response, answer, metadata, tokens)


class Judge:
    """A function by its `__call__`."""

    async def __call__(self, prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
        return 0.25


judge = Judge()


def too_few(prompt: str, response: str) -> float:
    return 0.0


def more_with_defaults(
    prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar], scale: float = 2.0
) -> float:
    return scale


def checksum(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """Another one for every text."""
    return float(zlib.crc32(response.encode()) % 1_000_000)
