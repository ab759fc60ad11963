from dataclasses import replace

from tests.async_rl.terminal.snapshots import starting, training


def test_the_time_left_is_at_the_pace_so_far() -> None:
    assert training(version=30).eta_s == 140.0


def test_a_resumed_run_has_its_pace_from_its_own_steps() -> None:
    assert replace(training(version=30), first_version=20).eta_s == 420.0


def test_nothing_is_known_before_the_first_step() -> None:
    assert starting().eta_s is None
