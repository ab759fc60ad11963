"""Aggregations: literal numbers, and totals that do not look at which rows are at hand."""

import pytest
import torch

from async_rl.config.objective import Aggregation
from learner.losses.aggregation import AGGREGATIONS, BatchTotals

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("token_mean", [1 / 4, 1 / 4, 1 / 4]),
        ("token_sum", [1, 1, 1]),
        ("seq_mean_token_mean", [1 / (3 * 2), 1 / 2, 1 / 2]),
        ("seq_mean_token_sum", [1 / 2, 1 / 2, 1 / 2]),
        ("seq_mean_token_sum_norm", [1 / (2 * 5), 1 / (2 * 5), 1 / (2 * 5)]),
    ],
)
def test_a_row_has_this_scale(name: str, scales: list[float]) -> None:
    got = AGGREGATIONS[name](MASK, BatchTotals.of(MASK, 5.0))
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(scales, rel=1e-15)


def test_totals_count_tokens_and_the_rows_that_have_any() -> None:
    assert BatchTotals.of(MASK, 5.0) == BatchTotals(num_tokens=4, num_sequences=2, length_norm=5.0)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_some_rows_have_the_scales_that_they_have_in_the_whole(name: str) -> None:
    totals = BatchTotals.of(MASK, 5.0)
    parts = [AGGREGATIONS[name](MASK[rows], totals) for rows in (slice(0, 1), slice(1, 3))]
    assert torch.equal(torch.cat(parts), AGGREGATIONS[name](MASK, totals))


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0), (2, 3)])
def test_nothing_to_train_has_finite_scales(name: str, shape: tuple[int, int]) -> None:
    mask = torch.zeros(shape, dtype=torch.bool)
    got = AGGREGATIONS[name](mask, BatchTotals.of(mask, 5.0))
    assert got.shape == shape[:1] and got.isfinite().all()


def test_every_word_of_the_config_but_auto_is_in_the_table() -> None:
    assert set(AGGREGATIONS) == {word.value for word in Aggregation} - {"auto"}
