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
        _solve(coefficients, terms)
    else:
        assert abs(coefficients) <= 1, coefficients
        _solve_constant(coefficients, terms)
    return terms


def _solve(a: Tensor, y: Tensor) -> None:
    """Solves for y [N, T], which holds the terms, in place."""
    num_pairs = y.shape[1] // 2
    if num_pairs == 0:
        return
    even, odd = y[:, 0::2], y[:, 1::2]
    a_even, a_odd = a[:, 0::2], a[:, 1::2]
    even[:, :num_pairs].addcmul_(a_even[:, :num_pairs], odd)
    folded = torch.zeros_like(even)
    torch.mul(a_even[:, :num_pairs], a_odd, out=folded[:, :num_pairs])
    # A product that left the range would make NaN of a 0 further back.
    folded.clamp_(max=torch.finfo(y.dtype).max)
    _solve(folded, even)
    num_followed = even.shape[1] - 1
    odd[:, :num_followed].addcmul_(a_odd[:, :num_followed], even[:, 1:])


def _solve_constant(a: float, y: Tensor) -> None:
    """`_solve` where all coefficients are one number: nothing but y is read."""
    num_pairs = y.shape[1] // 2
    if num_pairs == 0:
        return
    even, odd = y[:, 0::2], y[:, 1::2]
    even[:, :num_pairs].add_(odd, alpha=a)
    _solve_constant(a * a, even)
    num_followed = even.shape[1] - 1
    odd[:, :num_followed].add_(even[:, 1:], alpha=a)
