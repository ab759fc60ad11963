"""Charts of one line and of a few: sparkline, bars, durations, numbers. Pure text."""

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, width: int, low: float | None = None, high: float | None = None) -> str:
    """One block a value; more values than `width` are averaged into `width` parts. NaN is a gap."""
    parts = _parts(values, width)
    finite = [v for v in parts if not math.isnan(v)]
    if not finite:
        return ""
    low = min(finite) if low is None else low
    high = max(finite) if high is None else high
    return "".join(" " if math.isnan(v) else BLOCKS[_level(v, low, high)] for v in parts)


def bar(share: float, *, width: int) -> str:
    """A bar of `share` (0 to 1) of `width` cells; anything above 0 can be seen."""
    cells = round(share * width)
    return "█" * cells if cells or share <= 0 else "▏"


def duration(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None, form: str = ".3f") -> str:
    """A number in a format, – where there is none: None, or a mean of nothing."""
    return "–" if value is None or math.isnan(value) else format(value, form)


def _level(value: float, low: float, high: float) -> int:
    if high <= low:
        return 0
    return min(len(BLOCKS) - 1, max(0, int((value - low) / (high - low) * len(BLOCKS))))


def _parts(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    parts = [[v for v in values[a:b] if not math.isnan(v)] for a, b in pairwise(edges)]
    return [sum(part) / len(part) if part else math.nan for part in parts]
