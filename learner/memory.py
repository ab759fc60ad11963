"""How much memory a rank has held at most.

Owns the question alone: on a GPU the device's memory, else the process's.
"""

import resource

import torch

_GIB = 2**30


def peak_memory_gib() -> float:
    """Of this process since its start, or of its GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved() / _GIB
    # Kibibytes on Linux.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB
