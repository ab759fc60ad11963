"""How much memory a call takes beyond what was there, as the system sees it: whoever allocated, and however.

Of Linux and glibc. Exact in a process with `ENVIRONMENT` alone, where no freed block is there already when a call
asks for one; such a process is slower, and no place to take time.
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Larger blocks come from the system and go back to it at once."""

_libc = ctypes.CDLL("libc.so.6")


def peak_bytes(call: Callable[[], object]) -> int:
    """Largest growth of the process's resident memory during the call, its result included."""
    # The first time, code is loaded.
    call()
    gc.collect()
    _libc.malloc_trim(0)
    # Resets the high-water mark, see proc(5).
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _resident_bytes("VmRSS")
    result = call()
    peak = _resident_bytes("VmHWM") - before
    del result
    return peak


def tensors(size_bytes: int, batch: torch.Tensor) -> float:
    """Bytes in units of the batch's size in float32."""
    return size_bytes / (4 * batch.numel())


def _resident_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024
