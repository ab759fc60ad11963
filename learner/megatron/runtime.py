"""The process's ground for Megatron: device, process groups, random states, threads.

Owns what is one per process, and the one place that decides between CUDA and the CPU. Knows nothing of
models.
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from async_rl.errors import ResourceError
from learner.megatron import cpu_compat

USE_CUDA = torch.cuda.is_available()
"""Whether this process trains on a GPU."""
USE_TE = USE_CUDA
"""Whether layers are Transformer Engine's; else Megatron's local ones with our attention."""

_num_users = 0


def device() -> torch.device:
    """Where the model lives."""
    return torch.device("cuda", torch.cuda.current_device()) if USE_CUDA else torch.device("cpu")


def acquire(*, seed: int, num_threads: int) -> None:
    """Prepares the process for one more backend; the first one makes the process groups and seeds."""
    global _num_users
    if USE_CUDA and not HAVE_TE:
        raise ResourceError(
            "there is a GPU, and Transformer Engine is not installed",
            place="the learner's Python environment",
            remedy="install the extra `gpu`, or hide the GPU with CUDA_VISIBLE_DEVICES= to train on the CPU",
        )
    _num_users += 1
    if _num_users > 1:
        return
    if not USE_CUDA:
        cpu_compat.install()
        torch.set_num_threads(num_threads)
    # One rank needs no port and no file to meet itself.
    store = dist.HashStore()
    dist.init_process_group("nccl" if USE_CUDA else "gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.manual_seed(seed)
    # Megatron adds small offsets to the seed for its named states, and refuses to see one twice.
    model_parallel_cuda_manual_seed(seed, te_rng_tracker=USE_TE)


def release() -> None:
    """One backend less; the last one takes the process groups down."""
    global _num_users
    assert _num_users > 0
    _num_users -= 1
    if _num_users == 0:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
