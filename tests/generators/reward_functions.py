"""Reward functions, good and bad. `misbehave` does what the prompt says."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping

import numpy as np

from async_rl.protocol import Scalar

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
        case "die":
            os.kill(os.getpid(), 9)
        case "sleep":
            time.sleep(60)
        case "pid":
            return os.getpid()
        case "metadata":
            return metadata["level"]
        case "numpy":
            return np.float32(0.5)
    return {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "1.0", "true": True}.get(prompt, 1.0)


async def misbehave_async(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> object:
    if prompt == "sleep":
        await asyncio.sleep(60)
    if prompt == "own timeout":
        raise TimeoutError("the judge did not answer")
    return misbehave(prompt, response, answer, metadata)


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


def length(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    return float(len(response))
