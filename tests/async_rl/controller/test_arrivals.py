"""A rank has each group once, one at a time, whatever is lost or said twice on the way."""

from hypothesis import given
from hypothesis import strategies as st

from async_rl.controller.arrivals import Arrivals
from async_rl.protocol import ArrivalRequest, DeliveryKey, TrajectoryGroup
from tests.async_rl.groups import make_group


def ask(arrivals: Arrivals, number: int, peer: str = "rank-0") -> None:
    arrivals.ask(peer, ArrivalRequest(version=3, number=number))


def answer(arrivals: Arrivals, groups: list[TrajectoryGroup], peer: str = "rank-0") -> tuple[int, int] | None:
    """(number, group id)"""
    arrival = arrivals.answer(peer, groups)
    return None if arrival is None else (arrival.number, arrival.group.group_id)


GROUPS = [make_group(i, (3,)) for i in range(3)]


def test_one_group_a_request_in_the_given_order_and_none_unasked() -> None:
    arrivals = Arrivals()
    assert answer(arrivals, GROUPS) is None
    for number in range(3):
        ask(arrivals, number)
        assert answer(arrivals, GROUPS) == (number, number)
        assert not arrivals.is_asked and answer(arrivals, GROUPS) is None
    ask(arrivals, 3)
    assert answer(arrivals, GROUPS) is None, "it has had them all"
    assert answer(arrivals, [*GROUPS, make_group(7, (3,))]) == (3, 7), "the request waits for what comes"


def test_a_request_said_again_gets_the_same_group_or_another_where_that_has_left() -> None:
    arrivals = Arrivals()
    ask(arrivals, 0)
    assert answer(arrivals, GROUPS[1:]) == (0, 1)
    ask(arrivals, 0)
    assert answer(arrivals, GROUPS) == (0, 1)
    ask(arrivals, 0)
    assert answer(arrivals, [GROUPS[0], GROUPS[2]]) == (0, 0)
    ask(arrivals, 1)
    assert answer(arrivals, [GROUPS[0], GROUPS[2]]) == (1, 2)


def test_once_the_batch_is_on_its_way_nobody_is_answered() -> None:
    arrivals = Arrivals()
    ask(arrivals, 0)
    arrivals.close()
    assert answer(arrivals, GROUPS) is None
    ask(arrivals, 0)
    assert answer(arrivals, GROUPS) == (0, 0)


def test_each_rank_has_its_own_and_a_new_life_has_had_none() -> None:
    arrivals = Arrivals()
    for peer in ("rank-0", "rank-1", "rank-0 again"):
        ask(arrivals, 0, peer)
        assert answer(arrivals, GROUPS, peer) == (0, 0)


def test_another_attempt_of_a_group_is_another_group() -> None:
    arrivals = Arrivals()
    ask(arrivals, 0)
    assert answer(arrivals, [make_group(4, (3,))]) == (0, 4)
    ask(arrivals, 1)
    assert answer(arrivals, [make_group(4, (3,), attempt=1)]) == (1, 4)


@given(st.data())
def test_no_group_is_scored_twice_by_a_rank_whose_messages_are_lost_and_repeated(data: st.DataObject) -> None:
    arrivals, buffer = Arrivals(), list(GROUPS)
    number, on_the_way = 0, list[tuple[int, DeliveryKey]]()
    scored: list[DeliveryKey] = []
    for issued in range(data.draw(st.integers(1, 30))):
        event = data.draw(st.sampled_from(["ask", "arrive", "lose", "deliver", "train"]))
        if event == "ask":
            ask(arrivals, number)
        elif event == "arrive" and on_the_way:
            answered, key = on_the_way.pop(0)
            if answered == number:
                scored.append(key)
                number += 1
        elif event == "lose" and on_the_way:
            on_the_way.pop(0)
        elif event == "deliver":
            buffer.append(make_group(10 + issued, (3,)))
        elif event == "train" and buffer:
            buffer.pop(data.draw(st.integers(0, len(buffer) - 1)))
        arrival = arrivals.answer("rank-0", buffer)
        if arrival is not None:
            on_the_way.append((arrival.number, arrival.group.key))
    assert len(set(scored)) == len(scored)
