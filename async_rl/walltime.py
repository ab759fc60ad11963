"""When a run has to stop by itself, so that a checkpoint is whole before its time is over.

Owns that decision. Pure: times come in as arguments, of any one clock in seconds.
"""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Walltime:
    """Keeps back the longest step and the longest checkpoint so far: what may lie between now and the end."""

    limit_s: float
    """0: there is none."""
    began_s: float
    longest_step_s: float = 0.0
    longest_checkpoint_s: float = 0.0
    _stepped_s: float | None = None

    def stepped(self, now_s: float) -> None:
        """A step has ended; also said where the first begins."""
        if self._stepped_s is not None:
            self.longest_step_s = max(self.longest_step_s, now_s - self._stepped_s)
        self._stepped_s = now_s

    def interrupted(self) -> None:
        """What comes until the next step has ended is no step."""
        self._stepped_s = None

    def checkpointed(self, took_s: float) -> None:
        """A checkpoint took so long, from its beginning until it was whole."""
        self.longest_checkpoint_s = max(self.longest_checkpoint_s, took_s)

    def is_due(self, now_s: float) -> bool:
        """Whether a step more could be one too many."""
        left_s = self.began_s + self.limit_s - now_s
        return self.limit_s > 0 and left_s <= self.longest_step_s + self.longest_checkpoint_s
