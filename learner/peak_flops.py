"""What a rank's device can do at most, which MFU is a share of.

Owns the measurement by large matrix products, for devices whose peak nobody has written down: a product of two large
matrices is as near to it as any model comes. Knows nothing of models.
"""

import time

import torch

from learner.products import multiply

_SIZES = {"cpu": 1024, "cuda": 8192}
"""Rows and columns: large enough that moving them costs little beside multiplying them."""
_MEASURE_S = 0.3


def peak_flops(given_tflops: float, *, device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of one device: as given, in 10¹² a second, or if that is 0 as measured.

    Measuring takes less than a second, and of all products the fastest counts: others may be using the machine.
    """
    if given_tflops:
        return given_tflops * 1e12
    size = _SIZES[device.type]
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    # The first one sets up the library.
    _product_s(left, right)
    fastest_s, until = float("inf"), time.perf_counter() + _MEASURE_S
    while time.perf_counter() < until:
        fastest_s = min(fastest_s, _product_s(left, right))
    return 2 * size**3 / fastest_s


def _product_s(left: torch.Tensor, right: torch.Tensor) -> float:
    started = time.perf_counter()
    product = multiply(left, right)
    # Reading one number waits for all of them, on any device.
    product[0, 0].item()
    return time.perf_counter() - started
