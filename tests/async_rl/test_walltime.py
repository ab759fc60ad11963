"""A run that stops by itself: early enough for the step in hand and a checkpoint, and not before."""

from hypothesis import given
from hypothesis import strategies as st

from async_rl.walltime import Walltime

seconds = st.floats(0.01, 100.0)


def test_without_a_limit_it_is_never_late() -> None:
    walltime = Walltime(limit_s=0.0, began_s=0.0)
    walltime.stepped(1.0)
    walltime.stepped(100.0)
    assert not walltime.is_due(1e9)


def test_the_longest_step_and_the_longest_checkpoint_are_kept_back() -> None:
    walltime = Walltime(limit_s=100.0, began_s=1000.0)
    for now_s in (1010.0, 1012.0, 1017.0, 1020.0):
        walltime.stepped(now_s)
    for took_s in (3.0, 4.0, 1.0):
        walltime.checkpointed(took_s)
    assert (walltime.longest_step_s, walltime.longest_checkpoint_s) == (5.0, 4.0)
    assert not walltime.is_due(1090.9) and walltime.is_due(1091.0)


def test_a_restart_is_no_step() -> None:
    walltime = Walltime(limit_s=100.0, began_s=0.0)
    walltime.stepped(1.0)
    walltime.interrupted()
    walltime.stepped(50.0)
    walltime.stepped(52.0)
    assert walltime.longest_step_s == 2.0


@given(limit_s=st.floats(300.0, 3000.0), steps=st.lists(seconds, min_size=1, max_size=200), checkpoint_s=seconds)
def test_whoever_looks_after_each_step_ends_in_time_once_it_has_seen_the_longest(
    limit_s: float, steps: list[float], checkpoint_s: float
) -> None:
    walltime, now_s = Walltime(limit_s=limit_s, began_s=0.0), 0.0
    walltime.stepped(0.0)
    walltime.checkpointed(checkpoint_s)
    for step_s in [max(steps), *steps]:
        now_s += step_s
        walltime.stepped(now_s)
        if walltime.is_due(now_s):
            break
    else:
        return
    assert now_s + checkpoint_s <= limit_s + 1e-6
