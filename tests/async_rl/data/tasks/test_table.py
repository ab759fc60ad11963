"""Rows are dealt out so that evaluation never sees what any training saw."""

from hypothesis import given
from hypothesis import strategies as st

from async_rl.data.tasks.table import deal

sizes = st.integers(10, 2000)
seeds = st.integers(0, 2**32)


@given(sizes, seeds, seeds)
def test_held_out_numbers_are_never_trained_on_whatever_the_seeds(num_rows: int, seed: int, other: int) -> None:
    train = deal(num_rows, is_held_out=False, count=num_rows, seed=seed)
    held_out = deal(num_rows, is_held_out=True, count=num_rows, seed=other)
    assert sorted(train + held_out) == list(range(num_rows))
    assert len(held_out) == num_rows // 10


@given(sizes, st.integers(0, 100), seeds)
def test_fewer_rows_are_the_first_of_more(num_rows: int, count: int, seed: int) -> None:
    everything = deal(num_rows, is_held_out=False, count=num_rows, seed=seed)
    assert deal(num_rows, is_held_out=False, count=count, seed=seed) == everything[:count]


def test_the_order_is_the_same_on_every_machine_and_differs_by_seed() -> None:
    assert deal(50, is_held_out=False, count=5, seed=0) != deal(50, is_held_out=False, count=5, seed=1)
    assert deal(50, is_held_out=True, count=5, seed=0) == [14, 4, 12, 39, 3]
