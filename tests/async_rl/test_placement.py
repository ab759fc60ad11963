"""Cores: engines first, the learner on what is left."""

from async_rl.placement import place


def test_one_generator_and_the_learner_share_no_core_on_two() -> None:
    placement = place(num_generators=1, cores=[0, 1], pin=True)
    assert placement.generators == [[0]]
    assert placement.learner == [1]
    assert not placement.shares_cores


def test_the_learner_takes_all_cores_that_are_left() -> None:
    assert place(num_generators=2, cores=[3, 1, 0, 2], pin=True).learner == [2, 3]


def test_more_generators_than_cores_go_round_and_say_so() -> None:
    placement = place(num_generators=3, cores=[0, 1], pin=True)
    assert placement.generators == [[0], [1], [0]]
    assert placement.learner == [1]
    assert placement.shares_cores


def test_without_pinning_the_system_decides() -> None:
    placement = place(num_generators=2, cores=[0, 1], pin=False)
    assert placement.generators == [None, None]
    assert placement.learner is None
