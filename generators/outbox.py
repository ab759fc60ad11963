"""Finished groups that the controller has not acknowledged yet.

Owns what must not be lost between a sample's end and its journaling. Knows no sockets and no clock.
"""

from collections.abc import Iterator

from async_rl.protocol import Ack, Delivery, Purpose


class Outbox:
    """Deliveries in the order in which they were finished; each stays until its ack."""

    def __init__(self) -> None:
        self._unacked: dict[tuple[Purpose, int, int], Delivery] = {}

    def put(self, delivery: Delivery) -> None:
        """Keeps a delivery."""
        self._unacked[delivery.purpose, delivery.group.group_id, delivery.group.attempt] = delivery

    def acknowledge(self, ack: Ack) -> bool:
        """Forgets what is durable now; False if it was not here, as after a second delivery."""
        return self._unacked.pop((ack.purpose, ack.group_id, ack.attempt), None) is not None

    def withdraw(self, purpose: Purpose, group_id: int) -> None:
        """Forgets every delivery of a group that nobody waits for any more."""
        for key in [key for key in self._unacked if key[:2] == (purpose, group_id)]:
            del self._unacked[key]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._unacked.values()))

    def __len__(self) -> int:
        return len(self._unacked)
