"""Reward failures of all generators: how many had which cause, and when to say so again.

Owns the counts and the pace of messages. Pure: time comes in as an argument. Whatever reward functions do, the user
reads a few lines of it.
"""

from collections import Counter
from dataclasses import dataclass, field

from async_rl.protocol import RewardFailures

OTHERS = "(others)"
MAX_CAUSES = 64
"""Causes beyond these are counted, and spoken of, together."""


@dataclass
class Complaints:
    """One message a cause and interval."""

    interval_s: float = 60.0
    counts: Counter[str] = field(default_factory=Counter)
    said_s: dict[str, float] = field(default_factory=dict)

    def hear(self, generator: str, failures: RewardFailures, now_s: float) -> str | None:
        """Counts failures, and returns what to tell the user, if that is due."""
        cause = failures.cause if failures.cause in self.counts or len(self.counts) < MAX_CAUSES else OTHERS
        self.counts[cause] += failures.count
        if cause in self.said_s and now_s - self.said_s[cause] < self.interval_s:
            return None
        self.said_s[cause] = now_s
        count = self.counts[cause]
        times = "once" if count == 1 else f"{count} times so far"
        return f"A reward failed {times}, last at {generator}: {failures.reason}. Such samples are generated again."
