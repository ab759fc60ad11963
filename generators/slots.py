"""Room in the engine: how many requests it takes, how many are promised, and how long it had none.

Owns the arithmetic behind credits and idle time. Knows no leases, sockets or engines; the clock comes in.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    """`capacity` requests at once. A group reserves its samples when it begins and gives each back when it ends.

    More may be reserved than there is room for (grants cross credits on their way); requests then wait their turn.
    """

    def __init__(self, capacity: int, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._clock = clock
        self._room = asyncio.Semaphore(capacity)
        self._started_at = clock()
        self._busy_s = 0.0
        self._busy_since = 0.0
        self.reserved = 0
        """Samples that run or wait for room."""
        self.running = 0
        """Requests in the engine."""

    def credit(self, group_size: int) -> int:
        """How many more groups fit."""
        return max(0, self._capacity - self.reserved) // group_size

    @asynccontextmanager
    async def running_request(self) -> AsyncIterator[None]:
        """Waits for room, first come first served, and holds it."""
        async with self._room:
            if self.running == 0:
                self._busy_since = self._clock()
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1
                if self.running == 0:
                    self._busy_s += self._clock() - self._busy_since

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return self._clock() - self._started_at

    @property
    def idle_s(self) -> float:
        """Of `elapsed_s`, with no request in the engine."""
        now = self._clock()
        busy = self._busy_s + (now - self._busy_since if self.running else 0.0)
        return now - self._started_at - busy


class Reservation:
    """The samples of one group that still need the engine."""

    def __init__(self, slots: Slots, num_samples: int, on_release: Callable[[], None]) -> None:
        self._slots = slots
        self._on_release = on_release
        self._num_samples = 0
        self.extend(num_samples)

    def extend(self, num_samples: int = 1) -> None:
        """Samples that are to be generated (again)."""
        self._num_samples += num_samples
        self._slots.reserved += num_samples

    def release(self, num_samples: int = 1) -> None:
        """Samples that need the engine no more."""
        assert num_samples <= self._num_samples, (num_samples, self._num_samples)
        self._num_samples -= num_samples
        self._slots.reserved -= num_samples
        self._on_release()

    def close(self) -> None:
        """Gives back what is left; a cancelled group ends here."""
        if self._num_samples:
            self.release(self._num_samples)
