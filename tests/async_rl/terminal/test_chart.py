import math

from hypothesis import given
from hypothesis import strategies as st

from async_rl.terminal.chart import BLOCKS, bar, duration, number, sparkline


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], width=8) == BLOCKS
    assert sparkline([0.5], width=8) == "▁"
    assert sparkline([0.0, 0.5, 1.0], width=8, low=0.0, high=1.0) == "▁▅█"


def test_more_values_than_cells_are_averaged() -> None:
    assert sparkline([0, 0, 7, 7], width=2) == "▁█"


def test_gaps_stay_gaps() -> None:
    assert sparkline([0.0, math.nan, 1.0], width=3) == "▁ █"
    assert sparkline([math.nan], width=3) == ""


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 60))
def test_a_sparkline_fits_its_width(values: list[float], width: int) -> None:
    assert len(sparkline(values, width=width)) == min(len(values), width)


def test_anything_above_nothing_can_be_seen_in_a_bar() -> None:
    assert bar(0.0, width=10) == ""
    assert bar(1e-6, width=10) == "▏"
    assert bar(0.5, width=10) == "█" * 5
    assert bar(1.0, width=10) == "█" * 10


def test_durations() -> None:
    assert [duration(s) for s in (0, 7.4, 754, 3723)] == ["0:00", "0:07", "12:34", "1:02:03"]


def test_numbers_and_where_there_is_none() -> None:
    assert [number(v) for v in (0.5, None, math.nan)] == ["0.500", "–", "–"]
    assert number(1234.5, ",.0f") == "1,234"
