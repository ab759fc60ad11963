"""The gate's arithmetic, against literal numbers and a brute-force schedule."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from async_rl.ledger import Counts
from async_rl.staleness import StalenessGate


def counts(**kwargs: int) -> Counts:
    zero = dict.fromkeys(Counts.__struct_fields__, 0)
    return Counts(**(zero | kwargs))


def gate(maximum: int = 4, depth: int = 1, groups_per_step: int = 8, steps: int = 100) -> StalenessGate:
    return StalenessGate(max=maximum, depth=depth, groups_per_step=groups_per_step, steps=steps)


def test_synchronous_admits_one_batch_and_nothing_while_it_trains() -> None:
    synchronous = gate(maximum=0, depth=0)
    assert synchronous.capacity(0, counts()) == 8
    assert synchronous.capacity(0, counts(leased=5, delivered=3)) == 0
    assert synchronous.capacity(0, counts(batched=8)) == 0
    assert synchronous.capacity(1, counts(trained=8)) == 8


def test_depth_is_how_many_batches_generation_runs_ahead() -> None:
    assert gate(depth=2).capacity(0, counts()) == 24
    assert gate(depth=2).capacity(3, counts(trained=24, batched=8, leased=4)) == 12


def test_ended_groups_give_their_place_back() -> None:
    assert gate(depth=0).capacity(0, counts(stale=3, filtered=2, failed=1, delivered=2)) == 6


def test_nothing_is_admitted_for_batches_after_the_last() -> None:
    assert gate(depth=3, steps=2).capacity(0, counts()) == 16
    assert gate(depth=3, steps=2).capacity(2, counts(trained=16)) == 0


def test_a_generator_too_old_for_the_bound_gets_no_room() -> None:
    assert gate(maximum=2).room(active_version=2, outstanding=[], next_version=5) == 0
    assert gate(maximum=2).room(active_version=3, outstanding=[], next_version=5) == 8


def test_crowded_names_the_first_deadline_with_too_many_groups() -> None:
    assert gate(groups_per_step=2).crowded([3, 3, 3, 4], next_version=3) == 3
    assert gate(groups_per_step=2).crowded([3, 3, 4, 4], next_version=3) is None


def brute_force_feasible(deadlines: list[int], next_version: int, groups_per_step: int) -> bool:
    """Tries every assignment of groups to batches."""
    choices = [range(next_version, deadline + 1) for deadline in deadlines]
    return any(all(schedule.count(v) <= groups_per_step for v in set(schedule)) for schedule in product(*choices))


@given(
    deadlines=st.lists(st.integers(2, 5), max_size=5),
    next_version=st.integers(2, 4),
    groups_per_step=st.integers(1, 3),
    active=st.integers(0, 3),
    maximum=st.integers(0, 3),
)
def test_feasibility_and_room_agree_with_every_possible_schedule(
    deadlines: list[int], next_version: int, groups_per_step: int, active: int, maximum: int
) -> None:
    g = gate(maximum=maximum, depth=0, groups_per_step=groups_per_step)
    feasible = brute_force_feasible(deadlines, next_version, groups_per_step)
    assert (g.crowded(deadlines, next_version) is None) == feasible
    if not feasible:
        return
    room = g.room(active, deadlines, next_version)
    for more in range(3):
        schedulable = brute_force_feasible(deadlines + [active + maximum] * more, next_version, groups_per_step)
        assert schedulable == (more <= room or more == 0)
