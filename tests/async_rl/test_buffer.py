"""Which groups a batch takes, and when it may start. Two groups a batch, a bound of 2 versions."""

import pytest

from async_rl.buffer import TrajectoryBuffer
from async_rl.config.staleness import OverBound
from async_rl.staleness import StalenessGate
from tests.async_rl.groups import make_group

GATE = StalenessGate(max=2, depth=1, groups_per_step=2, steps=100)


def filled(over_bound: OverBound, versions: dict[int, tuple[int, ...]]) -> TrajectoryBuffer:
    """A buffer with a group for each id, whose tokens are of these versions."""
    buffer = TrajectoryBuffer(GATE, over_bound)
    for group_id, of_tokens in versions.items():
        buffer.add(make_group(group_id, versions=of_tokens))
    return buffer


def test_a_batch_takes_the_earliest_deadlines_and_then_the_smallest_ids() -> None:
    buffer = filled(OverBound.wait, {5: (3,), 4: (3,), 9: (1,)})
    assert buffer.select(3, {}).chosen == [9, 4]


def test_the_oldest_token_decides_a_groups_deadline() -> None:
    assert filled(OverBound.wait, {1: (4, 3)}).deadline(1) == 5


def test_without_enough_groups_nothing_is_chosen_and_nobody_awaited() -> None:
    selection = filled(OverBound.wait, {1: (0,)}).select(0, {7: 0})
    assert (selection.chosen, selection.awaited) == ([], [])


def test_a_selection_changes_nothing() -> None:
    buffer = filled(OverBound.drop, {1: (0,), 2: (5,), 3: (5,)})
    assert buffer.select(5, {}) == buffer.select(5, {})
    assert set(buffer.groups) == {1, 2, 3}


def test_a_batch_waits_for_leased_groups_that_would_come_too_late_after_it() -> None:
    buffer = filled(OverBound.wait, {1: (4,), 2: (4,)})
    # Version 5's batch has two places, and three leased groups are due by then.
    assert buffer.select(4, {7: 5, 8: 5}).chosen == [1, 2]
    held = buffer.select(4, {7: 5, 8: 5, 9: 5})
    assert (held.chosen, held.awaited) == ([], [7, 8, 9])


@pytest.mark.parametrize(
    ("over_bound", "chosen", "stale", "requeued"),
    [
        (OverBound.drop, [2, 3], [1], []),
        (OverBound.requeue, [2, 3], [], [1]),
        (OverBound.train, [1, 2], [], []),
    ],
)
def test_what_becomes_of_a_group_over_the_bound(
    over_bound: OverBound, chosen: list[int], stale: list[int], requeued: list[int]
) -> None:
    selection = filled(over_bound, {1: (0,), 2: (5,), 3: (5,)}).select(5, {})
    assert (selection.chosen, selection.stale, selection.requeued) == (chosen, stale, requeued)


def test_a_masked_group_trains_as_long_as_one_token_is_inside_the_bound() -> None:
    selection = filled(OverBound.mask, {1: (0, 3), 2: (0, 2), 3: (5,)}).select(5, {})
    assert (selection.chosen, selection.stale) == ([1, 3], [2])


def test_only_waiting_holds_a_batch_for_leases() -> None:
    for over_bound in (OverBound.drop, OverBound.requeue, OverBound.mask, OverBound.train):
        assert filled(over_bound, {1: (4,), 2: (4,)}).select(4, {7: 4, 8: 4, 9: 4}).awaited == []


def test_groups_of_a_version_are_those_that_it_was_the_last_to_sample() -> None:
    buffer = filled(OverBound.wait, {5: (3, 3), 4: (3,), 9: (2, 3), 7: (3, 4), 1: (2,)})
    assert [group.group_id for group in buffer.sampled_by(3)] == [9, 4, 5]
    assert buffer.sampled_by(5) == []
