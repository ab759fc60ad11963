"""What generators and a reward model say to each other.

Owns these words. They travel on a channel of their own: the controller never sees them.
"""

import math

from async_rl.protocol.wire import Message


class ScoreRequest(Message, frozen=True, kw_only=True):
    """A generator wants a text's score."""

    number: int
    """Of the request among its sender's: the answer carries it."""
    text: str
    """A prompt as the policy read it, and its response."""


class Score(Message, frozen=True, kw_only=True):
    """What the classifier says of a text."""

    number: int
    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"a score of {self.value}")


class ScoreFailed(Message, frozen=True, kw_only=True):
    """A text has no score."""

    number: int
    reason: str


ScoreAnswer = Score | ScoreFailed
