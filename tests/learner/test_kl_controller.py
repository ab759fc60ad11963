"""The coefficient of the KL: literal steps, bounds, and what a checkpoint keeps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_rl.config.objective import KLConfig, KLController
from learner.kl_controller import KL_CONTROLLERS, AdaptiveKL, FixedKL


def test_every_word_of_the_config_is_in_the_table() -> None:
    assert set(KL_CONTROLLERS) == {word.value for word in KLController}


def test_a_fixed_coefficient_stays() -> None:
    controller = KL_CONTROLLERS["fixed"](KLConfig(coef=0.3))
    assert controller == FixedKL(coef=0.3)
    assert controller.after(9.0, 100).coef == controller.resumed(0.1).coef == 0.3


@pytest.mark.parametrize(
    ("kl", "num_sequences", "coef"),
    [
        (0.1, 50, 0.3),
        (0.11, 50, 0.3 * (1 + 0.1 * 0.5)),
        (9.0, 50, 0.3 * (1 + 0.2 * 0.5)),
        (0.0, 50, 0.3 * (1 - 0.2 * 0.5)),
        (-5.0, 50, 0.3 * (1 - 0.2 * 0.5)),
        (0.0, 5000, 0.3 * (1 - 0.2)),
    ],
)
def test_an_adaptive_coefficient_moves_towards_the_target(kl: float, num_sequences: int, coef: float) -> None:
    controller = KL_CONTROLLERS["adaptive"](KLConfig(coef=0.3, target=0.1, horizon=100))
    assert controller.after(kl, num_sequences).coef == pytest.approx(coef, rel=1e-12)
    assert controller.coef == 0.3


def test_a_batch_whose_kl_is_no_number_moves_nothing() -> None:
    controller = AdaptiveKL(coef=0.3, target=0.1, horizon=10)
    assert controller.after(math.nan, 10) == controller
    assert controller.after(math.inf, 10).coef == pytest.approx(0.36)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 10**6)), max_size=20))
def test_it_stays_positive(batches: list[tuple[float, int]]) -> None:
    controller = AdaptiveKL(coef=0.3, target=0.1, horizon=10)
    for kl, num_sequences in batches:
        controller = controller.after(kl, num_sequences)
        assert controller.coef > 0


def test_a_resumed_controller_goes_on_as_if_nothing_had_been() -> None:
    begun = AdaptiveKL(coef=0.3, target=0.1, horizon=100)
    before = begun.after(0.2, 10)
    assert begun.resumed(before.coef).after(0.05, 10) == before.after(0.05, 10)
