"""The trajectory buffer: delivered groups, and the choice of the next batch among them.

Owns which groups a batch takes (earliest deadline first) and when it may start. What `staleness.over_bound`
means is decided here and nowhere else:

    wait      a batch waits for leased groups that would otherwise pass the bound
    drop      a group over the bound is stale
    requeue   ... is thrown away, its prompt is generated again
    mask      ... trains with its tokens inside the bound; with none inside, it is stale
    train     ... trains

Pure: leases come in as deadlines; the ledger is moved by whoever asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from async_rl.config.staleness import OverBound
from async_rl.protocol import TrajectoryGroup
from async_rl.staleness import StalenessGate


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the buffer decided about the batch of one version."""

    chosen: list[int]
    """Groups of the batch, `groups_per_step` of them; empty while it cannot start."""
    stale: list[int]
    """Groups to drop."""
    requeued: list[int]
    """Groups to generate again."""
    awaited: list[int]
    """Leased groups that the batch is held for; empty when it simply lacks groups."""


@dataclass
class TrajectoryBuffer:
    """Delivered groups by id."""

    gate: StalenessGate
    over_bound: OverBound
    groups: dict[int, TrajectoryGroup] = field(default_factory=dict)

    def add(self, group: TrajectoryGroup) -> None:
        """Takes in a delivered group."""
        assert group.group_id not in self.groups, group.group_id
        self.groups[group.group_id] = group

    def remove(self, group_id: int) -> TrajectoryGroup:
        """Takes out a group."""
        return self.groups.pop(group_id)

    def deadline(self, group_id: int) -> int:
        """The last version whose batch may take the group."""
        return self.gate.deadline(self.groups[group_id].oldest_version)

    def deadlines(self) -> list[int]:
        """Deadlines of all delivered groups."""
        return [self.deadline(i) for i in self.groups]

    def sampled_by(self, version: int) -> list[TrajectoryGroup]:
        """Groups whose newest tokens `version` sampled, by deadline and id."""
        own = [i for i, group in self.groups.items() if group.newest_version == version]
        return [self.groups[i] for i in sorted(own, key=lambda i: (self.deadline(i), i))]

    def select(self, version: int, leased: Mapping[int, int]) -> Selection:
        """Decides the batch of `version`, without changing anything.

        Args:
            version: the learner's version when the batch starts.
            leased: deadline by id of every leased group.
        """
        over = [i for i in self.groups if self.deadline(i) < version]
        stale = [i for i in over if self._is_stale(i, version)]
        requeued = over if self.over_bound is OverBound.requeue else []
        gone = {*stale, *requeued}
        eligible = sorted((i for i in self.groups if i not in gone), key=lambda i: (self.deadline(i), i))
        chosen = eligible[: self.gate.groups_per_step]
        if len(chosen) < self.gate.groups_per_step:
            return Selection(chosen=[], stale=stale, requeued=requeued, awaited=[])
        awaited = self._awaited(eligible[len(chosen) :], version, leased)
        return Selection(chosen=[] if awaited else chosen, stale=stale, requeued=requeued, awaited=awaited)

    def _is_stale(self, group_id: int, version: int) -> bool:
        if self.over_bound is OverBound.mask:
            return self.gate.deadline(self.groups[group_id].newest_version) < version
        assert self.over_bound is not OverBound.wait, f"group {group_id} passed the bound although batches wait"
        return self.over_bound is OverBound.drop

    def _awaited(self, left: list[int], version: int, leased: Mapping[int, int]) -> list[int]:
        """Leased groups without which the batches after this one could not keep the bound."""
        if self.over_bound is not OverBound.wait:
            return []
        crowded = self.gate.crowded([*(self.deadline(i) for i in left), *leased.values()], version + 1)
        if crowded is None:
            return []
        awaited = sorted(i for i, deadline in leased.items() if deadline <= crowded)
        assert awaited, f"delivered groups alone are not feasible at deadline {crowded} from version {version + 1}"
        return awaited
