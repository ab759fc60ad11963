"""Linear recurrences backwards in time, without a loop over time.

Owns one algorithm: odd steps are folded into the even ones before them, the even ones are solved as a recurrence of
half the length, and the odd ones follow. That is O(T) work in log₂ T levels, all of it in place.

    y_t = b_t + a_t·y_{t+1}   ⇒   y_{2k} = (b_{2k} + a_{2k}·b_{2k+1}) + (a_{2k}·a_{2k+1})·y_{2k+2}

Blelloch, Prefix Sums and Their Applications (https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf).

Legend: N sequences, T tokens.
"""

import torch
from torch import Tensor


@torch.no_grad()
def reverse_scan(coefficients: Tensor | float, terms: Tensor) -> Tensor:
    """y_t = terms_t + coefficients_t·y_{t+1}, 0 past the end.

    Args:
        coefficients: [N, T], or one number of at most 1 for all.
        terms: [N, T] floating point.

    Returns:
        [N, T], detached.
    """
    return reverse_scan_(coefficients, terms.clone())


@torch.no_grad()
def reverse_scan_(coefficients: Tensor | float, terms: Tensor) -> Tensor:
    """`reverse_scan` in place: `terms` becomes, and is, the result."""
    assert terms.ndim == 2, terms.shape
    if isinstance(coefficients, Tensor):
        assert coefficients.shape == terms.shape, (coefficients.shape, terms.shape)
        _solve(coefficients[:, :-1], terms)
    else:
        assert abs(coefficients) <= 1, coefficients
        _solve_constant(coefficients, terms)
    return terms


def _solve(a: Tensor, y: Tensor) -> None:
    """Solves for y [N, T], which holds the terms, in place; a [N, T − 1], since nothing follows the last."""
    width = y.shape[1]
    odd_coefficients = []
    for step in _steps(width):
        y[:, : width - step : 2 * step].addcmul_(a[:, 0::2], y[:, step :: 2 * step])
        odd_coefficients.append(a[:, 1::2])
        # A product that left the range would make NaN of a 0 further back.
        a = (a[:, 0:-1:2] * a[:, 1::2]).clamp_(max=torch.finfo(a.dtype).max)
    for step, a_odd in zip(reversed(_steps(width)), reversed(odd_coefficients), strict=True):
        y[:, step : width - step : 2 * step].addcmul_(a_odd, y[:, 2 * step :: 2 * step])


def _solve_constant(a: float, y: Tensor) -> None:
    """`_solve` where all coefficients are one number: nothing but y is read."""
    width = y.shape[1]
    for step in _steps(width):
        y[:, : width - step : 2 * step].add_(y[:, step :: 2 * step], alpha=a**step)
    for step in reversed(_steps(width)):
        y[:, step : width - step : 2 * step].add_(y[:, 2 * step :: 2 * step], alpha=a**step)


def _steps(width: int) -> list[int]:
    """The distance of neighbours at each level: 1, 2, 4, …, below `width`."""
    return [1 << level for level in range(max(0, width - 1).bit_length())]
