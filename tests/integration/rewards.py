"""A reward that even a random model earns something of, so that its weights move."""

from collections.abc import Mapping


def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, object]) -> float:
    """Share of the response's characters that are even digits."""
    return sum(c in "02468" for c in response) / max(len(response), 1)


def named(prompt: str, response: str, answer: str, metadata: Mapping[str, object]) -> dict[str, float]:
    """Two rewards: even digits, and few tokens."""
    return {"even": reward(prompt, response, answer, metadata), "short": 1 - len(response) / 16}


def seldom(prompt: str, response: str, answer: str, metadata: Mapping[str, object]) -> float:
    """1 for an answer that begins with an even digit, else 0: many groups of equal rewards."""
    return float(response[:1] in ("0", "2", "4", "6", "8"))
