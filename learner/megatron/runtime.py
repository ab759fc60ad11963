"""The process's ground for Megatron: device, process groups, random states, threads.

Owns what is one per process, and the one place that decides between CUDA and the CPU. Knows nothing of
models.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from async_rl.config.parallel import ParallelConfig
from async_rl.errors import ConfigError, ResourceError
from learner.megatron import cpu_compat, cpu_memory
from learner.place import Place

USE_CUDA = torch.cuda.is_available()
"""Whether this process trains on a GPU."""
USE_TE = USE_CUDA
"""Whether layers are Transformer Engine's; else Megatron's local ones with our attention."""

PEER_TIMEOUT_S = 600.0
"""How long a rank waits for another in the middle of a step: longer than any step, shorter than a night."""


def device() -> torch.device:
    """Where the model lives."""
    return torch.device("cuda", torch.cuda.current_device()) if USE_CUDA else torch.device("cpu")


def wait_for_device() -> None:
    """Returns when everything that was asked of the device is done, on all its streams."""
    if USE_CUDA:
        torch.cuda.synchronize()


def seed_random(seed: int) -> None:
    """Sets all random states of this process; those that ranks do not share follow from its place."""
    torch.manual_seed(seed)
    # Megatron adds small offsets to the seed for its named states, and refuses to see one twice.
    model_parallel_cuda_manual_seed(seed, te_rng_tracker=USE_TE)


class Ground:
    """What all networks of a process stand on: one at a time, joined by all ranks at once, closed when they are done.

    A rank that dies ends the others' next exchange with it in an error; one that hangs, after the timeout.
    """

    parallel: ParallelConfig
    """With `dp` as it came out."""
    seed: int
    writers: dist.ProcessGroup
    """All ranks, for what they tell each other while they write a checkpoint beside training."""

    def __init__(
        self,
        parallel: ParallelConfig | None = None,
        place: Place | None = None,
        *,
        seed: int,
        num_threads: int,
        timeout_s: float = PEER_TIMEOUT_S,
    ) -> None:
        """Meets the other ranks; a `ConfigError` or `ResourceError` where they cannot be laid out so.

        Args:
            parallel: how models are spread; None: not at all.
            place: of this process; None: the only one.
            seed: of the random states.
            num_threads: on the CPU.
            timeout_s: that a rank waits for the others.
        """
        place = place or Place()
        self.seed = seed
        self.parallel = lay_out(parallel or ParallelConfig(), place.world_size)
        _refuse_cuda_without_te()
        if USE_CUDA:
            torch.cuda.set_device(place.local_rank)
        else:
            cpu_compat.install()
            cpu_memory.settle()
            torch.set_num_threads(num_threads)
        _meet(place, timeout_s)
        _make_groups(self.parallel, timeout_s)
        self.writers = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        seed_random(seed)

    def close(self) -> None:
        """Leaves the other ranks; networks on this ground are of no use after it."""
        parallel_state.destroy_model_parallel()
        # Megatron forgets some, whose threads would then live on.
        for name, value in list(vars(parallel_state).items()):
            if isinstance(value, dist.ProcessGroup):
                setattr(parallel_state, name, None)
        dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lay_out(parallel: ParallelConfig, world_size: int) -> ParallelConfig:
    """The config with its `dp` filled in and `sequence_parallel` only where it says something.

    A `ConfigError` where so many ranks cannot stand in this order.
    """
    if parallel.vpp > 1 and parallel.pp == 1:
        raise ConfigError(
            f"vpp={parallel.vpp} with pp=1: there is no pipeline to interleave",
            place="learner.parallel.vpp",
            remedy="set vpp=1, or pp to 2 or more",
        )
    copies, left = divmod(world_size, parallel.ranks_of_copy)
    if left or (parallel.dp and parallel.dp != copies):
        raise ConfigError(
            f"tp·pp·cp = {parallel.ranks_of_copy} with dp={parallel.dp} does not fit {world_size} ranks",
            place="learner.parallel",
            remedy="start tp·pp·cp·dp ranks, or set dp=0 and start a multiple of tp·pp·cp",
        )
    ranks_of_stage = world_size // parallel.pp
    if ranks_of_stage % (parallel.ep * parallel.etp):
        raise ConfigError(
            f"ep·etp = {parallel.ep * parallel.etp} does not divide the {ranks_of_stage} ranks of a pipeline stage",
            place="learner.parallel.ep",
            remedy="choose ep and etp so that ep·etp divides tp·cp·dp",
        )
    return replace(parallel, dp=copies, sequence_parallel=parallel.sequence_parallel and parallel.tp > 1)


def _refuse_cuda_without_te() -> None:
    if USE_CUDA and not HAVE_TE:
        raise ResourceError(
            "there is a GPU, and Transformer Engine is not installed",
            place="the learner's Python environment",
            remedy="install the extra `gpu`, or hide the GPU with CUDA_VISIBLE_DEVICES= to train on the CPU",
        )


def _meet(place: Place, timeout_s: float) -> None:
    backend, timeout = "nccl" if USE_CUDA else "gloo", timedelta(seconds=timeout_s)
    if place.world_size == 1:
        # One rank needs no port and no file to meet itself.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        return
    address = place.rendezvous if "://" in place.rendezvous else f"tcp://{place.rendezvous}"
    dist.init_process_group(backend, init_method=address, rank=place.rank, world_size=place.world_size, timeout=timeout)


def _make_groups(parallel: ParallelConfig, timeout_s: float) -> None:
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        virtual_pipeline_model_parallel_size=parallel.vpp if parallel.vpp > 1 else None,
        context_parallel_size=parallel.cp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.etp,
        distributed_timeout_minutes=timeout_s / 60,
        # Rows of numbers on the CPU are merged among the shards, on GPUs too.
        create_gloo_process_groups=True,
    )
