"""However many rewards fail, the user reads of each cause once in a while."""

from async_rl.controller.complaints import MAX_CAUSES, OTHERS, Complaints
from async_rl.protocol import RewardFailures


def failures(cause: str, count: int = 1) -> RewardFailures:
    return RewardFailures(cause=cause, reason=f"{cause}: no verdict", count=count)


def test_a_cause_is_told_at_once_and_then_once_an_interval_with_all_it_came_to() -> None:
    complaints = Complaints(interval_s=60.0)
    first = complaints.hear("generator-0", failures("KeyError"), 100.0)
    assert first == "A reward failed once, last at generator-0: KeyError: no verdict. Such samples are generated again."
    assert complaints.hear("generator-1", failures("KeyError", 5), 130.0) is None
    assert complaints.hear("generator-1", failures("ValueError"), 131.0) is not None, "another cause"
    later = complaints.hear("generator-1", failures("KeyError", 2), 160.0)
    assert later is not None and "failed 8 times so far, last at generator-1" in later


def test_causes_without_end_are_told_together() -> None:
    complaints = Complaints()
    told = [complaints.hear("generator-0", failures(f"cause {n}"), 100.0) for n in range(3 * MAX_CAUSES)]
    assert sum(line is not None for line in told) == MAX_CAUSES + 1
    assert complaints.counts[OTHERS] == 2 * MAX_CAUSES
