"""Freed memory is there for the next tensor, and kernels of shapes that are gone do not pile up."""

import subprocess
import sys

TENSORS = """
import resource
import torch
from learner.megatron import cpu_memory
cpu_memory.settle()

def touched_pages(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(16 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

# glibc needs a few until one fits where another was.
touched_pages(20)
print(touched_pages(20))
"""

KERNELS = """
import resource
import torch
from learner.megatron import cpu_memory
from learner.products import multiply_transposed
cpu_memory.settle()

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

torch.set_num_threads(1)
a, b = torch.randn(2000, 128), torch.randn(2000, 256)
for tokens in range(900, 1000):
    multiply_transposed(a[:tokens], b[:tokens])
before = peak_mib()
for tokens in range(1000, 1600):
    multiply_transposed(a[:tokens], b[:tokens])
print(peak_mib() - before)
"""


def printed(script: str) -> int:
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return int(done.stdout)


def test_twenty_tensors_of_64_mib_take_no_page_from_the_system() -> None:
    assert printed(TENSORS) < 1000


def test_products_of_600_shapes_leave_little_behind() -> None:
    assert printed(KERNELS) < 50
