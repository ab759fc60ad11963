"""The correction as plain loops over Python's floats: slow, and short enough to be read beside the definitions.

Every function here takes lists of rows; positions outside of the mask are never looked at.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from correction.correction import Correction
from correction.rejection import Criterion
from correction.weights import Masked, Truncated

Row = list[float]
BOUND = 20.0


@dataclass(frozen=True)
class Batch:
    """Two policies and a mask, as lists."""

    proximal: list[Row]
    rollout: list[Row]
    mask: list[list[bool]]

    @property
    def log_ratios(self) -> list[dict[int, float]]:
        """By position, of the tokens in the mask; as they are."""
        return [
            {t: p - q for t, (p, q, kept) in enumerate(zip(ps, qs, ms, strict=True)) if kept}
            for ps, qs, ms in zip(self.proximal, self.rollout, self.mask, strict=True)
        ]


def clamp(x: float) -> float:
    return max(-BOUND, min(BOUND, x))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def pstd(values: Sequence[float]) -> float:
    center = mean(values)
    return math.sqrt(mean([(x - center) ** 2 for x in values]))


def std(values: Sequence[float]) -> float:
    return pstd(values) * math.sqrt(len(values) / (len(values) - 1)) if len(values) > 1 else 0.0


def ess(values: Sequence[float]) -> float:
    squares = math.fsum(x * x for x in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares > 0 else 0.0


def turns(row: dict[int, float]) -> list[list[int]]:
    """Positions that follow each other without a hole."""
    runs = groupby(enumerate(sorted(row)), key=lambda pair: pair[1] - pair[0])
    return [[position for _, position in run] for _, run in runs]


def shared(row: dict[int, float], level: str) -> list[tuple[list[int], float]]:
    """Positions that share a ratio, and that ratio."""
    if level == "token":
        return [([t], math.exp(clamp(x))) for t, x in row.items()]
    if level == "segment":
        return [(run, math.exp(clamp(math.fsum(row[t] for t in run)))) for run in turns(row)]
    total = math.fsum(row.values())
    if level == "geometric":
        total /= max(1, len(row))
    return [(list(row), math.exp(clamp(total)))] if row else []


def weigh(ratio: float, weighting: object) -> float:
    if isinstance(weighting, Truncated):
        return min(max(ratio, weighting.floor), weighting.cap)
    if isinstance(weighting, Masked):
        return ratio if weighting.floor <= ratio <= weighting.cap else 0.0
    return 1.0


def weights(batch: Batch, correction: Correction) -> list[dict[int, float]]:
    """Before normalisation, by position."""
    return [
        {t: weigh(ratio, correction.weighting) for run, ratio in shared(row, correction.level) for t in run}
        for row in batch.log_ratios
    ]


def normalizer(batch: Batch, correction: Correction) -> float:
    """The mean over whatever has a ratio of its own."""
    each = [
        weigh(ratio, correction.weighting) for row in batch.log_ratios for _, ratio in shared(row, correction.level)
    ]
    return mean(each) if correction.normalize and mean(each) > 1e-8 else 1.0


STATISTICS: dict[str, Callable[[float], float]] = {
    "k1": lambda x: -x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.expm1(x) - x,
}


def statistic(row: dict[int, float], criterion: Criterion) -> list[float]:
    """One a token, or one of the sequence."""
    values = [STATISTICS[criterion.statistic](clamp(x)) for x in row.values()]
    if criterion.level == "token" or not values:
        return values
    if criterion.level == "seq_sum":
        return [math.fsum(values)]
    if criterion.level == "seq_mean":
        return [mean(values)]
    return [max(values, key=lambda value: (abs(value), value))]


def rejected(row: dict[int, float], criterion: Criterion) -> set[int]:
    """Positions that the criterion takes away."""
    values = [STATISTICS[criterion.statistic](clamp(x)) for x in row.values()]
    if criterion.level == "token":
        return {t for t, value in zip(row, values, strict=True) if not holds(value, criterion)}
    judged = values if criterion.level == "seq_max" else statistic(row, criterion)
    return set() if all(holds(value, criterion) for value in judged) else set(row)


def holds(value: float, criterion: Criterion) -> bool:
    if criterion.statistic != "k1":
        return value <= criterion.high
    log_ratio = value if criterion.verl_compatible else -value
    return math.log(criterion.low) <= log_ratio <= math.log(criterion.high)


def keep(batch: Batch, correction: Correction) -> list[list[bool]]:
    """The mask after all criteria and the veto."""
    left = []
    for row, mask in zip(batch.log_ratios, batch.mask, strict=True):
        gone = set().union(*(rejected(row, criterion) for criterion in correction.criteria))
        if correction.veto > 0 and any(x < math.log(correction.veto) for x in row.values()):
            gone = set(row)
        left.append([kept and t not in gone for t, kept in enumerate(mask)])
    return left
