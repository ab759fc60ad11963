"""Credits never promise more room than there is; idle time is exactly the time without a request."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from generators.slots import Reservation, Slots


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@given(capacity=st.integers(1, 20), group_size=st.integers(1, 5), taken=st.lists(st.integers(0, 5), max_size=8))
def test_groups_that_fit_never_exceed_the_room_that_is_left(capacity: int, group_size: int, taken: list[int]) -> None:
    slots = Slots(capacity, Clock())
    reservations = [Reservation(slots, n, lambda: None) for n in taken]
    credit = slots.credit(group_size)
    left = capacity - sum(taken)
    assert credit >= 0
    assert credit == 0 if left < group_size else credit * group_size <= left < (credit + 1) * group_size
    for reservation in reservations:
        reservation.close()
        reservation.close()
    assert slots.reserved == 0
    assert slots.credit(group_size) == capacity // group_size


def test_each_release_is_told() -> None:
    told: list[int] = []
    slots = Slots(4, Clock())
    reservation = Reservation(slots, 2, lambda: told.append(slots.reserved))
    reservation.release()
    reservation.extend()
    reservation.close()
    assert told == [1, 0]


async def test_requests_wait_for_room_in_their_order() -> None:
    slots = Slots(1, Clock())
    order: list[int] = []

    async def request(number: int) -> None:
        async with slots.running_request():
            order.append(number)
            await asyncio.sleep(0)
            assert slots.running == 1

    await asyncio.gather(*(request(number) for number in range(4)))
    assert order == [0, 1, 2, 3]


async def test_idle_time_is_the_time_without_any_request() -> None:
    clock = Clock()
    slots = Slots(2, clock)
    clock.now_s += 3  # idle
    async with slots.running_request():
        clock.now_s += 5
        async with slots.running_request():
            clock.now_s += 7
        assert slots.idle_s == 3
    clock.now_s += 11  # idle
    assert slots.idle_s == 14
    assert slots.elapsed_s == 26
