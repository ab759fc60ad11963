"""Arrivals: which delivered groups the learner's ranks score while they wait for their batch.

Ranks compute together, so all of them take the same groups in the same order: what the first of them got as its n-th,
everybody gets as his n-th, however late he asks. A rank asks for the next when it has scored one, so that nothing piles
up before its batch. Owns that order. Pure: what lies in the buffer comes in as an argument.
"""

from collections.abc import Callable, Sequence

from async_rl.protocol import TrajectoryGroup


class Arrivals:
    """Of one version of the learner."""

    def __init__(self) -> None:
        self._given: list[TrajectoryGroup] = []

    def get(self, number: int, fresh: Callable[[], Sequence[TrajectoryGroup]]) -> TrajectoryGroup | None:
        """What a rank gets that has had `number` groups; None: so far, nothing, as for one of a life that was undone.

        Args:
            number: of groups.
            fresh: called where nobody has had more; all that may be scored, in the order in which it should.
        """
        if number > len(self._given):
            return None
        if number == len(self._given):
            known = {group.key for group in self._given}
            group = next((g for g in fresh() if g.key not in known), None)
            if group is None:
                return None
            self._given.append(group)
        return self._given[number]
