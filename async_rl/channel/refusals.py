"""What was refused, from whom, and when to say so.

Owns the counts and the rate of log lines. Pure: time comes in as an argument. Whatever strangers send, the
counts stay small and the log stays readable.
"""

from collections import Counter

OTHERS = "(others)"


class Refusals:
    """Counts every refusal; lets through one line a sender and interval."""

    def __init__(self, *, log_interval_s: float = 10.0, max_senders: int = 256) -> None:
        """Beyond `max_senders`, senders are counted, and spoken of, together."""
        self._log_interval_s = log_interval_s
        self._max_senders = max_senders
        self._logged_s: dict[str, float] = {}
        self.by_sender: Counter[str] = Counter()

    def count(self, sender: str, problem: str, now_s: float) -> str | None:
        """Counts one refusal, and returns the line to log if one is due."""
        key = sender if sender in self.by_sender or len(self.by_sender) < self._max_senders else OTHERS
        self.by_sender[key] += 1
        if now_s - self._logged_s.get(key, -self._log_interval_s) < self._log_interval_s:
            return None
        self._logged_s[key] = now_s
        # Quoted, since a stranger may call itself two lines.
        return f"refused from {sender!r} ({self.by_sender[key]} so far): {problem}"
