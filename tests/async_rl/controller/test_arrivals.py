"""Arrivals: all ranks score the same groups in the same order, each of them once."""

from collections.abc import Sequence

from async_rl.controller.arrivals import Arrivals
from async_rl.protocol import TrajectoryGroup
from tests.async_rl.groups import make_group

GROUPS = [make_group(group_id, (3,)) for group_id in range(3)]


def get(arrivals: Arrivals, number: int, fresh: Sequence[TrajectoryGroup] = ()) -> int | None:
    """The group's id."""
    group = arrivals.get(number, lambda: fresh)
    return None if group is None else group.group_id


def test_a_rank_gets_what_lies_there_one_after_the_other_and_each_once() -> None:
    arrivals = Arrivals()
    assert get(arrivals, 0) is None
    assert [get(arrivals, number, GROUPS) for number in range(3)] == [0, 1, 2]
    assert get(arrivals, 3, GROUPS) is None, "it has had them all"
    assert get(arrivals, 3, [*GROUPS, make_group(7, (3,))]) == 7


def test_what_one_rank_got_all_others_get_though_something_else_lies_there_by_then() -> None:
    arrivals = Arrivals()
    assert [get(arrivals, number, GROUPS[1:]) for number in range(2)] == [1, 2]
    assert [get(arrivals, number, GROUPS) for number in range(3)] == [1, 2, 0]
    assert get(arrivals, 1) == 2, "asked for again, since the answer was lost"


def test_another_delivery_of_the_same_group_is_another_arrival() -> None:
    arrivals, again = Arrivals(), make_group(0, (3,), attempt=1)
    assert arrivals.get(0, lambda: GROUPS[:1]) == GROUPS[0]
    assert arrivals.get(1, lambda: [GROUPS[0], again]) == again


def test_whoever_has_had_more_than_anybody_was_given_gets_nothing() -> None:
    assert get(Arrivals(), 2, GROUPS) is None
