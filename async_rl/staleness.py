"""The staleness gate: how much generation may run ahead, and which batch may still take a group.

Two knobs: `depth` decides how many batches ahead admission lets generation run (the usual lag), `max` is
the bound that no trained token passes. Between them lies the slack of stragglers.

The bound is kept by deadlines. A group's deadline is the last version whose batch may take it:

    deadline = oldest weight version + max

for a lease counted from the version that its generator had active when it began, since no token can be
older. Outstanding groups (leased and delivered) are feasible from version v on if earliest-deadline-first
can train them all in time, that is, if for every d

    |{outstanding groups with deadline ≤ d}| ≤ (d − v + 1) · groups_per_step

A lease is granted, and a batch started, only if the outstanding groups stay feasible; so with
`over_bound=wait` nothing is ever too old, whatever the order in which groups arrive.

Pure: plain arithmetic over counts and deadlines.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from async_rl.ledger import Counts


@dataclass(frozen=True, kw_only=True)
class StalenessGate:
    """The arithmetic of `staleness.max`, `staleness.depth` and the batch size."""

    max: int
    depth: int
    groups_per_step: int
    steps: int
    """Batches that the run trains: nothing is admitted for later ones."""

    def deadline(self, weight_version: int) -> int:
        """The last version whose batch may take a group with this oldest weight version."""
        return weight_version + self.max

    def capacity(self, version: int, counts: Counts) -> int:
        """How many groups may be leased now.

        Ended groups that did not train (stale, filtered, failed) are not subtracted: they give their place back.
        """
        admitted = counts.trained + counts.batched + counts.delivered + counts.leased
        batches = min(version + self.depth + 1, self.steps)
        return max(0, batches * self.groups_per_step - admitted)

    def crowded(self, deadlines: Iterable[int], next_version: int) -> int | None:
        """The first deadline by which more groups are due than the batches from `next_version` on can take.

        None if all fit: the groups are feasible.
        """
        return next((d for d, slack in self._slacks(deadlines, next_version) if slack < 0), None)

    def room(self, active_version: int, outstanding: Iterable[int], next_version: int) -> int:
        """How many more groups a generator with this active version may begin without making any late.

        Args:
            active_version: what the generator samples with now.
            outstanding: deadlines of all leased and delivered groups.
            next_version: the version whose batch is formed next.
        """
        own = self.deadline(active_version)
        due = sorted(outstanding)
        own_slack = (own - next_version + 1) * self.groups_per_step - sum(d <= own for d in due)
        later = (slack for d, slack in self._slacks(due, next_version) if d > own)
        return max(0, min([own_slack, *later]))

    def _slacks(self, deadlines: Iterable[int], next_version: int) -> Iterator[tuple[int, int]]:
        """(deadline, places left by it) for every deadline, in order."""
        due = 0
        for deadline, count in sorted(Counter(deadlines).items()):
            due += count
            yield deadline, (deadline - next_version + 1) * self.groups_per_step - due
