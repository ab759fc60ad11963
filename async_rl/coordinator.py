"""The coordinator: ledger, gate and buffer moved together, one method an event.

Owns the group's whole life as decisions: who may lease what, whether a delivery counts, when a batch may
start, what is trained. The controller drives it from sockets; simulations and tests drive the same object.

Pure: time and generator versions come in as arguments; nothing here reads a clock, a socket or a file.

Invariant under `over_bound=wait` (checked by a state machine in the tests): the outstanding groups are
feasible from the next batch on, so no chosen group is ever over the bound.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from async_rl.buffer import Selection, TrajectoryBuffer
from async_rl.config.staleness import OverBound
from async_rl.ledger import Counts, Ledger, LedgerSnapshot, State
from async_rl.protocol import TrajectoryGroup
from async_rl.staleness import StalenessGate


@dataclass(frozen=True, kw_only=True)
class LeaseTerms:
    """One granted lease."""

    group_id: int
    attempt: int


@dataclass(frozen=True, kw_only=True)
class BatchDecision:
    """What became of a wish for a batch."""

    groups: list[TrajectoryGroup]
    """The batch; empty while it cannot start."""
    awaited: list[int]
    """Leased groups that the learner is held for."""
    stale: list[int]
    requeued: list[int]


@dataclass
class Coordinator:
    """Moves ledger and buffer together; `version` is the learner's."""

    gate: StalenessGate
    ledger: Ledger
    buffer: TrajectoryBuffer
    version: int = 0
    batch: list[TrajectoryGroup] = field(default_factory=list)
    """The batch in training: that of `version`."""
    failed_in_a_row: int = 0
    """Groups that failed since the last delivery."""

    @classmethod
    def create(cls, gate: StalenessGate, over_bound: OverBound, *, max_attempts: int) -> "Coordinator":
        """A new run's coordinator."""
        return cls(gate=gate, ledger=Ledger(max_attempts), buffer=TrajectoryBuffer(gate, over_bound))

    @property
    def next_version(self) -> int:
        """The version whose batch is formed next."""
        return self.version + bool(self.batch)

    @property
    def counts(self) -> Counts:
        """How many groups are where."""
        return self.ledger.counts

    def fresh_groups(self) -> list[TrajectoryGroup]:
        """Delivered groups that the learner's own version sampled, in the order in which batches take them."""
        return self.buffer.sampled_by(self.version)

    def leased_deadlines(self) -> dict[int, int]:
        """Deadline by id of every leased group."""
        return {i: self.gate.deadline(holding.version) for i, holding in self.ledger.holdings()}

    def lease(
        self,
        holder: str,
        active_version: int,
        *,
        wanted: int,
        now_s: float,
        timeout_s: float,
        is_alone: bool = True,
    ) -> list[LeaseTerms]:
        """Grants a generator up to `wanted` leases: within capacity, and none that could come too late.

        Args:
            is_alone: False where other generators can take what this one could not finish: a generator that
                fails everything then fails each group once, and neither uses up its attempts nor the prompts.
        """
        room = self.gate.room(active_version, self._outstanding(), self.next_version)
        granted = max(0, min(wanted, room, self.gate.capacity(self.version, self.counts)))
        waiting = sorted(self.ledger.in_state(State.QUEUED))
        queued = [i for i in waiting if is_alone or self.ledger.records[i].failed_by != holder][:granted]
        # New groups only when no old one waits for somebody else.
        queued += [self.ledger.issue() for _ in range(granted - len(waiting))]
        return [
            LeaseTerms(
                group_id=i,
                attempt=self.ledger.lease(i, holder, version=active_version, expires_s=now_s + timeout_s),
            )
            for i in queued
        ]

    def accepts(self, group: TrajectoryGroup) -> bool:
        """Whether a delivery of this group would count."""
        return self.ledger.holds(group.group_id, group.attempt, group.incarnation)

    def deliver(self, group: TrajectoryGroup, *, has_signal: bool = True) -> bool:
        """A group came. False, and nothing changes, for a duplicate or a lease that had ended.

        Args:
            has_signal: False where the group has nothing to teach: it is filtered.
        """
        if not self.ledger.deliver(group.group_id, group.attempt, group.incarnation):
            return False
        self.failed_in_a_row = 0
        if has_signal:
            self.buffer.add(group)
        else:
            self.ledger.filter(group.group_id)
        return True

    def give_back(self, group_id: int, attempt: int, holder: str, reason: str) -> State | None:
        """A generator could not finish a group; returns what became of it (None: the lease had ended)."""
        state = self.ledger.give_back(group_id, attempt, holder, reason)
        self.failed_in_a_row += state is State.FAILED
        return state

    def holder_died(self, holder: str, reason: str) -> list[int]:
        """A generator's incarnation is dead: all its leases end; returns their groups."""
        return self.ledger.give_back_all(holder, reason)

    def expire(self, now_s: float) -> list[tuple[int, str]]:
        """Ends the leases whose time is over; returns (group id, holder) of each."""
        return self.ledger.expire(now_s)

    def select(self) -> BatchDecision:
        """Forms the batch of `version`, if it may start; moves what is over the bound."""
        assert not self.batch, f"the batch of version {self.version} is still in training"
        selection = self.buffer.select(self.version, self.leased_deadlines())
        self._remove_late(selection)
        self.batch = [self.buffer.remove(i) for i in selection.chosen]
        self.ledger.batch(selection.chosen, self.version)
        return BatchDecision(
            groups=self.batch, awaited=selection.awaited, stale=selection.stale, requeued=selection.requeued
        )

    def commit(self, version: int) -> None:
        """The learner has trained its batch and now is `version`."""
        assert version == self.version + 1, (version, self.version)
        self.ledger.train(self.version)
        self.batch = []
        self.version = version

    def snapshot(self) -> LedgerSnapshot:
        """What a checkpoint of the current version keeps."""
        return self.ledger.snapshot()

    @classmethod
    def restore(
        cls,
        gate: StalenessGate,
        over_bound: OverBound,
        *,
        max_attempts: int,
        version: int,
        snapshot: LedgerSnapshot,
        journal: Iterable[TrajectoryGroup],
        first_attempt: int = 0,
    ) -> "Coordinator":
        """The coordinator of a checkpoint: groups of the journal that it has not seen go back into the buffer.

        Those that cannot meet the bound any more queue again.

        Args:
            gate: the run's, as are `over_bound` and `max_attempts`.
            over_bound: see `TrajectoryBuffer`.
            max_attempts: see `Ledger`.
            version: the checkpoint's.
            snapshot: the checkpoint's.
            journal: as `Journal.load` restates them for this version.
            first_attempt: see `Ledger.restore`.
        """
        ended = set(range(snapshot.issued)) - snapshot.live_failures.keys()
        kept = {g.group_id: g for g in journal if g.group_id not in ended}
        coordinator = cls(
            gate=gate,
            ledger=Ledger.restore(snapshot, kept, max_attempts=max_attempts, first_attempt=first_attempt),
            buffer=TrajectoryBuffer(gate, over_bound),
            version=version,
        )
        for group in sorted(kept.values(), key=lambda g: g.oldest_version, reverse=True):
            if gate.room(group.oldest_version, coordinator.buffer.deadlines(), version):
                coordinator.buffer.add(group)
            else:
                coordinator.ledger.requeue(group.group_id)
        return coordinator

    def roll_back(self, *, version: int, snapshot: LedgerSnapshot, journal: Iterable[TrajectoryGroup]) -> None:
        """Becomes what `restore` makes of a checkpoint, among generators that live on.

        Their leases have ended, and what they may still deliver for them never counts.
        """
        restored = self.restore(
            self.gate,
            self.buffer.over_bound,
            max_attempts=self.ledger.max_attempts,
            version=version,
            snapshot=snapshot,
            journal=journal,
            first_attempt=self.ledger.unused_attempt,
        )
        self.ledger, self.buffer, self.version = restored.ledger, restored.buffer, restored.version
        self.batch = []
        self.failed_in_a_row = 0

    def _outstanding(self) -> list[int]:
        """Deadlines of the groups that batches have yet to take."""
        deadlines = [*self.leased_deadlines().values(), *self.buffer.deadlines()]
        if self.buffer.over_bound in (OverBound.drop, OverBound.requeue):
            return [d for d in deadlines if d >= self.next_version]
        return deadlines

    def _remove_late(self, selection: Selection) -> None:
        for group_id in selection.stale:
            self.buffer.remove(group_id)
            self.ledger.drop(group_id)
        for group_id in selection.requeued:
            self.buffer.remove(group_id)
            self.ledger.requeue(group_id)
