"""Statistics of groups: a plain loop, rows alone, and who does not count."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.advantages.groups import Groups

rows = st.lists(
    st.tuples(st.sampled_from([-3, 0, 10**12]), st.floats(-100, 100), st.booleans()), min_size=0, max_size=16
)


@given(rows)
def test_statistics_equal_a_plain_loop(samples: list[tuple[int, float, bool]]) -> None:
    labels = torch.tensor([label for label, *_ in samples], dtype=torch.int64)
    counted = torch.tensor([kept for *_, kept in samples], dtype=torch.bool)
    values = torch.tensor([x if kept else math.nan for _, x, kept in samples], dtype=torch.float64)
    groups = Groups(labels, counted)
    centered = groups.centered(values)
    deviation = groups.deviation(centered)
    best, second = groups.two_largest(values)
    for i, (label, value, kept) in enumerate(samples):
        peers = sorted((x for other, x, is_kept in samples if other == label and is_kept), reverse=True)
        assert groups.sizes[i] == len(peers)
        assert best[i] == (peers[0] if peers else -math.inf)
        assert second[i] == (peers[1] if len(peers) > 1 else -math.inf)
        if not kept:
            assert centered[i] == 0
        elif len(peers) == 1:
            assert float(centered[i]) == value and float(deviation[i]) == 1
        else:
            assert float(centered[i]) == pytest.approx(value - statistics.fmean(peers), abs=1e-9)
            assert float(deviation[i]) == pytest.approx(statistics.stdev(peers), abs=1e-9)


def test_a_weighted_mean_is_a_baseline_too() -> None:
    groups = Groups(torch.tensor([5, 5]), torch.tensor([True, True]))
    centered = groups.centered(torch.tensor([4.0, 0.0]), torch.tensor([1.0, 3.0]))
    assert centered.tolist() == [3.0, -1.0]


@given(st.floats(-1e30, 1e30), st.integers(2, 9))
def test_equal_values_are_exactly_at_their_mean(value: float, size: int) -> None:
    groups = Groups(torch.zeros(size, dtype=torch.int64), torch.ones(size, dtype=torch.bool))
    same = torch.full((size,), value, dtype=torch.float64)
    weights = torch.arange(1, size + 1)
    assert groups.centered(same).tolist() == groups.centered(same, weights).tolist() == [0.0] * size
    assert groups.deviation(groups.centered(same)).tolist() == [0.0] * size
