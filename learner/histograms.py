"""Numbers into bins.

Owns how many bins, and where they begin and end.
"""

import numpy as np

from async_rl.protocol import Float32Array, Histogram, Int32Array


def count_integers(values: Int32Array) -> Histogram:
    """One bin an integer, from 0 to the largest: bin n is [n, n + 1)."""
    assert values.min(initial=0) >= 0, values.min()
    counts = np.bincount(values, minlength=1)
    return Histogram(edges=[float(n) for n in range(len(counts) + 1)], counts=counts.tolist())


def count_bins(values: Float32Array, bins: int) -> Histogram:
    """Even bins from 0 to the largest value, at least 1; what is not finite is in none."""
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, bins=bins, range=(0.0, max(float(finite.max(initial=0.0)), 1.0)))
    return Histogram(edges=edges.tolist(), counts=counts.tolist())
