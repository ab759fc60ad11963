"""A reward for answers in LaTeX: whether what stands in the last `\\boxed{…}` is the answer."""

from collections.abc import Mapping

from async_rl.protocol import Scalar

BOX = "\\boxed{"


def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """1 where the last box of the response holds the answer, spaces aside; 0 for anything else, or no box."""
    found = last_boxed(response)
    return float(found is not None and _plain(found) == _plain(answer))


def last_boxed(text: str) -> str | None:
    """What stands between the braces of the last box; None without one, or where it never ends."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth, inside = 1, text[start + len(BOX) :]
    for place, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return inside[:place]
    return None


def _plain(text: str) -> str:
    return "".join(text.split())
