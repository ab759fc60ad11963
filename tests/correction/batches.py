"""Batches for the tests of the correction: of any shape, with junk where there is no data."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from correction.correction import Correction, correct
from correction.gap import PolicyGap
from correction.ratios import LEVELS
from correction.rejection import Criterion, CriterionLevel, Statistic
from correction.weights import OFF, Masked, Truncated
from tests.correction.plain import Batch

JUNK = (math.nan, math.inf, -math.inf)


@st.composite
def batches(draw: st.DrawFn, *, largest: float = 3.0, min_width: int = 0) -> Batch:
    """Some rows, of log-ratios up to `largest`; whole rows and the whole batch may be outside of the mask."""
    num_rows, width = draw(st.integers(0, 4)), draw(st.integers(min_width, 6))

    def grid(cell: st.SearchStrategy[float]) -> list[list[float]]:
        return [[draw(cell) for _ in range(width)] for _ in range(num_rows)]

    rollout = grid(st.floats(-8, -0.001))
    log_ratios = grid(st.floats(-largest, largest) | st.sampled_from((0.0, -largest, largest)))
    proximal = [[q + x for q, x in zip(*rows, strict=True)] for rows in zip(rollout, log_ratios, strict=True)]
    mask = [[draw(st.booleans()) for _ in range(width)] for _ in range(num_rows)]
    return Batch(proximal, rollout, mask)


def tensors(batch: Batch, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """π_prox, μ and mask, with junk outside of the mask."""
    width = len(batch.mask[0]) if batch.mask else 0
    mask = torch.tensor(batch.mask, dtype=torch.bool).view(len(batch.mask), width)

    def poisoned(rows: list[list[float]], offset: int) -> Tensor:
        junk = torch.tensor([JUNK[(i + offset) % 3] for i in range(mask.numel())], dtype=dtype).view_as(mask)
        return torch.where(mask, torch.tensor(rows, dtype=dtype).view_as(mask), junk)

    return poisoned(batch.proximal, 0), poisoned(batch.rollout, 1), mask


weightings = st.one_of(
    st.just(OFF),
    st.builds(Truncated, cap=st.floats(0.5, 5), floor=st.sampled_from((0.0, 0.1, 0.5))),
    st.builds(Masked, cap=st.floats(1.1, 5), floor=st.sampled_from((0.0, 0.1, 0.7))),
)


@st.composite
def criteria(draw: st.DrawFn) -> tuple[Criterion, ...]:
    """Up to three, of different names."""
    kinds = st.tuples(st.sampled_from(CriterionLevel), st.sampled_from(Statistic))
    chosen = draw(st.lists(kinds, max_size=3, unique=True))
    return tuple(draw(_criterion(level, statistic)) for level, statistic in chosen)


@st.composite
def _criterion(draw: st.DrawFn, level: CriterionLevel, statistic: Statistic) -> Criterion:
    if statistic is Statistic.k1:
        low, high = draw(st.floats(0.2, 0.9)), draw(st.floats(1.1, 4))
        return Criterion(level=level, statistic=statistic, low=low, high=high, verl_compatible=draw(st.booleans()))
    return Criterion(level=level, statistic=statistic, high=draw(st.floats(0.001, 4)))


corrections = st.builds(
    Correction,
    level=st.sampled_from(sorted(LEVELS)),
    weighting=weightings,
    normalize=st.booleans(),
    criteria=criteria(),
    veto=st.sampled_from((0.0, 0.1, 0.5)),
)


def gap_of(numerator: Tensor, denominator: Tensor, mask: Tensor) -> PolicyGap:
    """Of p from q, as a correction reports it."""
    return correct(numerator, denominator, mask, Correction()).diagnostics.gap
