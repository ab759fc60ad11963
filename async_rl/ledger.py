"""The ledger: where every issued group is, at every moment.

    queued → leased → delivered → batched → trained
       ↑________|          |
       ↑___________________|   (requeued)          or it ends as  stale | filtered | failed

Owns the equation

    issued = trained + stale + filtered + failed + queued + leased + delivered + batched

and that each delivery is counted once. Group ids are given out in order, so an id that was issued and
has no record has ended: late duplicates are known without keeping the ended.

Pure: time (seconds, any clock) and versions come in as arguments. Knows nothing of what is in a group.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec


class State(StrEnum):
    """Where a group is."""

    QUEUED = "queued"
    LEASED = "leased"
    DELIVERED = "delivered"
    BATCHED = "batched"
    TRAINED = "trained"
    STALE = "stale"
    FILTERED = "filtered"
    FAILED = "failed"


LIVE = frozenset({State.QUEUED, State.LEASED, State.DELIVERED, State.BATCHED})
ENDED = frozenset(State) - LIVE


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many groups are where; `issued` is the sum of the others, or something is lost."""

    issued: int
    trained: int
    stale: int
    filtered: int
    failed: int
    queued: int
    leased: int
    delivered: int
    batched: int

    @property
    def balanced(self) -> bool:
        """Whether the ledger's equation holds."""
        ended = self.trained + self.stale + self.filtered + self.failed
        return self.issued == ended + self.queued + self.leased + self.delivered + self.batched


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A lease as the ledger sees it."""

    holder: str
    """Incarnation of the generator."""
    attempt: int
    """With group and holder, the key of the one delivery that counts."""
    expires_s: float
    version: int
    """The generator's active version when the lease began: no token of it is older."""


@dataclass(kw_only=True)
class LiveGroup:
    """One live group."""

    state: State = State.QUEUED
    next_attempt: int = 0
    """The number of the next lease's attempt."""
    failures: int = 0
    """Leases that ended without delivery."""
    failed_by: str | None = None
    """Who held the last of them."""
    holding: Holding | None = None
    version: int | None = None
    """The learner version whose batch holds it."""


class LedgerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint keeps: everything of a live group but its id and failures is lost with the process."""

    issued: int
    ended: dict[str, int]
    live_failures: dict[int, int]


@dataclass
class Ledger:
    """Keeps account of groups; every method is one transition, and asserts that it is allowed."""

    max_attempts: int
    issued: int = 0
    first_attempt: int = 0
    """The number of every group's first attempt."""
    unused_attempt: int = 0
    """A number above those of all attempts so far."""
    records: dict[int, LiveGroup] = field(default_factory=dict)
    ended: Counter[State] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why leases ended without delivery, and why groups failed."""

    # --- transitions ---------------------------------------------------------------------------

    def issue(self) -> int:
        """A new group enters the queue; returns its id."""
        group_id = self.issued
        self.issued += 1
        self.records[group_id] = LiveGroup(next_attempt=self.first_attempt)
        return group_id

    def lease(self, group_id: int, holder: str, *, version: int, expires_s: float) -> int:
        """Hands a queued group to a generator; returns the attempt number that its delivery must carry."""
        record = self._record(group_id, State.QUEUED)
        record.state = State.LEASED
        record.holding = Holding(holder=holder, attempt=record.next_attempt, expires_s=expires_s, version=version)
        record.next_attempt += 1
        self.unused_attempt = max(self.unused_attempt, record.next_attempt)
        return record.holding.attempt

    def deliver(self, group_id: int, attempt: int, holder: str) -> bool:
        """A delivery came. False, and nothing changes, unless it is the first of the group's current lease."""
        if not self.holds(group_id, attempt, holder):
            return False
        record = self.records[group_id]
        record.state = State.DELIVERED
        record.holding = None
        return True

    def give_back(self, group_id: int, attempt: int, holder: str, reason: str) -> State | None:
        """A lease ends without delivery: the group queues again, or has failed after `max_attempts`.

        Returns the new state, or None where the lease was not the current one.
        """
        if not self.holds(group_id, attempt, holder):
            return None
        record = self.records[group_id]
        record.holding = None
        record.failures += 1
        record.failed_by = holder
        self.reasons[reason] += 1
        if record.failures < self.max_attempts:
            record.state = State.QUEUED
            return State.QUEUED
        self._end(group_id, State.FAILED)
        return State.FAILED

    def give_back_all(self, holder: str, reason: str) -> list[int]:
        """A generator's incarnation died: all its leases end."""
        held = [(i, holding.attempt) for i, holding in self.holdings() if holding.holder == holder]
        for group_id, attempt in held:
            self.give_back(group_id, attempt, holder, reason)
        return [group_id for group_id, _ in held]

    def expire(self, now_s: float) -> list[tuple[int, str]]:
        """Ends the leases whose time is over; returns (group id, holder) of each."""
        late = [(i, holding) for i, holding in self.holdings() if holding.expires_s <= now_s]
        for group_id, holding in late:
            self.give_back(group_id, holding.attempt, holding.holder, "lease timed out")
        return [(group_id, holding.holder) for group_id, holding in late]

    def batch(self, group_ids: Iterable[int], version: int) -> None:
        """Delivered groups become the batch that starts at `version`."""
        for group_id in group_ids:
            record = self._record(group_id, State.DELIVERED)
            record.state = State.BATCHED
            record.version = version

    def train(self, version: int) -> list[int]:
        """The batch that started at `version` is trained; returns its groups."""
        group_ids = [i for i, r in self.records.items() if r.state is State.BATCHED and r.version == version]
        for group_id in group_ids:
            self._end(group_id, State.TRAINED)
        return group_ids

    def drop(self, group_id: int) -> None:
        """A delivered group is over the bound: stale."""
        self._record(group_id, State.DELIVERED)
        self._end(group_id, State.STALE)

    def filter(self, group_id: int) -> None:
        """A delivered group has nothing to teach: filtered."""
        self._record(group_id, State.DELIVERED)
        self._end(group_id, State.FILTERED)

    def requeue(self, group_id: int) -> None:
        """A delivered group is thrown away and its prompt queues again; not an attempt, since nothing failed."""
        self._record(group_id, State.DELIVERED).state = State.QUEUED

    # --- questions -----------------------------------------------------------------------------

    def holds(self, group_id: int, attempt: int, holder: str) -> bool:
        """Whether this is the group's current lease."""
        record = self.records.get(group_id)
        if record is None or record.holding is None:
            return False
        return record.holding.holder == holder and record.holding.attempt == attempt

    def in_state(self, state: State) -> Iterator[int]:
        """Ids of live groups in a state, in no order."""
        return (i for i, r in self.records.items() if r.state is state)

    def holdings(self) -> Iterator[tuple[int, Holding]]:
        """The leases."""
        return ((i, r.holding) for i, r in self.records.items() if r.holding is not None)

    @property
    def counts(self) -> Counts:
        """How many groups are where."""
        live = Counter(r.state for r in self.records.values())
        return Counts(issued=self.issued, **{s.value: live[s] + self.ended[s] for s in State})

    # --- across a crash ------------------------------------------------------------------------

    def snapshot(self) -> LedgerSnapshot:
        """What a checkpoint keeps."""
        return LedgerSnapshot(
            issued=self.issued,
            ended={state.value: n for state, n in self.ended.items()},
            live_failures={i: r.failures for i, r in self.records.items()},
        )

    @classmethod
    def restore(
        cls, snapshot: LedgerSnapshot, journaled: Iterable[int], *, max_attempts: int, first_attempt: int = 0
    ) -> "Ledger":
        """The ledger of a checkpoint, with the groups of the journal delivered and every other live group queued.

        A journaled group that was issued after the checkpoint counts as issued again, with all ids before it:
        ids decide prompts, so none may be skipped.

        Args:
            snapshot: the checkpoint's.
            journaled: groups of the journal that the checkpoint has not seen.
            max_attempts: see `Ledger`.
            first_attempt: where generators live on that still work for leases of the history that is undone, a number
                above those of all its attempts: a delivery for one of them must not pass for one of a new lease.
        """
        journaled = set(journaled)
        ledger = cls(
            max_attempts=max_attempts,
            issued=max([snapshot.issued, *(i + 1 for i in journaled)]),
            first_attempt=first_attempt,
            unused_attempt=first_attempt,
        )
        ledger.ended = Counter({State(name): n for name, n in snapshot.ended.items()})
        live = snapshot.live_failures | dict.fromkeys(range(snapshot.issued, ledger.issued), 0)
        for group_id, failures in live.items():
            state = State.DELIVERED if group_id in journaled else State.QUEUED
            ledger.records[group_id] = LiveGroup(state=state, failures=failures, next_attempt=first_attempt)
        return ledger

    # --- inside --------------------------------------------------------------------------------

    def _record(self, group_id: int, expected: State) -> LiveGroup:
        record = self.records[group_id]
        assert record.state is expected, (group_id, record.state, expected)
        return record

    def _end(self, group_id: int, state: State) -> None:
        assert state in ENDED, state
        del self.records[group_id]
        self.ended[state] += 1
