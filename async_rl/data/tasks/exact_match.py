"""The simplest reward: whether the response is the answer."""

from collections.abc import Mapping

from async_rl.protocol import Scalar


def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """1 for the answer, 0 for anything else."""
    return float(response.strip() == answer)
