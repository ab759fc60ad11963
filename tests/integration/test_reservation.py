"""What a run takes of a Ray cluster: all of it or nothing, and for all its lives."""

import pytest
import ray

from async_rl.errors import ResourceError
from async_rl.launch import reservation
from async_rl.launch.reservation import Reservation
from async_rl.placement import Bundle

pytestmark = pytest.mark.integration

PEERS = Bundle(num_processes=2, cpus=1, gpus=0)
ALONE = Bundle(num_processes=1, cpus=1, gpus=0)


class Rank:
    """A process."""

    def lives(self) -> bool:
        """Whether it has begun."""
        return True


def test_every_process_has_its_seat_and_a_later_life_takes_the_seat_of_the_dead(ray_address: str) -> None:
    rank = ray.remote(num_cpus=1)(Rank)
    seats = Reservation([ALONE], [PEERS, PEERS], [ALONE], place="")
    try:
        every = [*seats.ranks, *seats.generators, *seats.reward_models]
        assert [seat.placement_group_bundle_index for seat in every] == [0, 0, 1, 1, 2, 3]
        for _ in range(2):
            actors = [rank.options(scheduling_strategy=seat).remote() for seat in every]
            assert all(ray.get([actor.lives.remote() for actor in actors], timeout=120))
            for actor in actors:
                ray.kill(actor)
    finally:
        seats.release()


def test_a_cluster_without_room_is_named_with_what_it_has(ray_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "RESERVE_TIMEOUT_S", 0.5)
    with pytest.raises(ResourceError) as refusal:
        Reservation([ALONE], [Bundle(num_processes=2, cpus=1, gpus=4)], [], place="learner.parallel")
    assert "no room for 2 CPU and 8 GPU + 1 CPU within 0.5 s: it has 8 CPU in all" in refusal.value.problem
    assert refusal.value.place == "learner.parallel"
