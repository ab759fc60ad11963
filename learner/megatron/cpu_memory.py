"""How a process on the CPU goes about memory.

Owns two settings of the process, to be made before its first product of matrices.
"""

import ctypes
import os
import platform

# See mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK = 1 << 30

_NUM_KERNELS = "64"


def settle() -> None:
    """Keeps freed memory for the next tensor, and only as many compiled kernels as a step needs."""
    _keep_freed_memory()
    _bound_kernel_caches()


def _keep_freed_memory() -> None:
    # By default large blocks go back to the system at once, and come from there again for the next tensor, page by page
    # and zeroed: that costs more than what is computed in them.
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _bound_kernel_caches() -> None:
    # oneDNN compiles a kernel for every number of tokens, in half a millisecond, and of those keeps a thousand of a
    # megabyte each, which with micro-batches of ever new lengths nobody asks for again. Both it and PyTorch's layer
    # over it count.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _NUM_KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", _NUM_KERNELS)
