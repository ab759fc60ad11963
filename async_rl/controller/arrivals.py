"""Arrivals: which delivered groups a learner rank that waits for its batch scores meanwhile.

    ArrivalRequest n ► the first group that qualifies and that the rank has not had, now or once one is delivered
    ArrivalRequest n again ► the same group again, since its answer may have been lost

A rank has at most one group on the way, and asks for the next when it has scored that: however slow it is, nothing
piles up before its batch. Owns who has had which group. Pure: what lies in the buffer comes in as an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from async_rl.protocol import Arrival, ArrivalRequest, DeliveryKey, TrajectoryGroup


@dataclass(kw_only=True)
class Rank:
    """One learner rank's life."""

    open_number: int | None = None
    """The request that has no answer yet."""
    last_number: int | None = None
    last_key: DeliveryKey = (-1, 0, "")
    """What answered the last request."""
    seen: set[DeliveryKey] = field(default_factory=set)
    """Groups that it has had, of those that may still come up."""


@dataclass
class Arrivals:
    """Ranks by their incarnation."""

    ranks: dict[str, Rank] = field(default_factory=dict)

    def ask(self, peer: str, request: ArrivalRequest) -> None:
        """A rank has time for a group."""
        self.ranks.setdefault(peer, Rank()).open_number = request.number

    @property
    def is_asked(self) -> bool:
        """Whether any rank has time."""
        return any(rank.open_number is not None for rank in self.ranks.values())

    def close(self) -> None:
        """The batch is on its way: nobody is answered any more."""
        for rank in self.ranks.values():
            rank.open_number = None

    def answer(self, peer: str, groups: Sequence[TrajectoryGroup]) -> Arrival | None:
        """What a rank gets now.

        Args:
            peer: the rank.
            groups: all that it may score, in the order in which it should.
        """
        rank = self.ranks.get(peer)
        if rank is None or rank.open_number is None:
            return None
        by_key = {group.key: group for group in groups}
        # Whatever else it has had ended, or is of an older version: it never comes up again.
        rank.seen &= by_key.keys()
        group = by_key.get(rank.last_key) if rank.open_number == rank.last_number else None
        group = group or next((g for g in groups if g.key not in rank.seen), None)
        if group is None:
            return None
        rank.seen.add(group.key)
        rank.last_number, rank.last_key, rank.open_number = rank.open_number, group.key, None
        return Arrival(number=rank.last_number, group=group)
