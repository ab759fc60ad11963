"""A reward that even a random model earns something of, so that its weights move."""

from collections.abc import Mapping


def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, object]) -> float:
    """Share of the response's characters that are even digits."""
    return sum(c in "02468" for c in response) / max(len(response), 1)
