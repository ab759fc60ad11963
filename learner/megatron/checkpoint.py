"""Megatron's distributed checkpoint of a trained model: weights, optimizer, schedule, random states.

Owns what is in it and how it is read, in the layout of ranks that wrote it or in any other. Weights, moments and
counters know no layout; random states are a rank's own, and come back only where the layout is the same.
"""

import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedStateDict
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader

from async_rl.config.parallel import ParallelConfig
from async_rl.errors import ModelError
from learner.megatron import runtime
from learner.megatron.optimizer import GuardedOptimizer
from learner.megatron.runtime import Ground
from learner.megatron.snapshot import MegatronSnapshot, cause_of

logger = logging.getLogger(__name__)


def take_snapshot(ground: Ground, chunks: Sequence[GPTModel], optimizer: GuardedOptimizer) -> MegatronSnapshot:
    """Of everything that training goes on from."""
    state = _sharded_state(chunks, optimizer, is_loading=False)
    state["random"] = _sharded_random_state(ground.parallel)
    return MegatronSnapshot(state, ground.writers)


def load(folder: Path, ground: Ground, chunks: Sequence[GPTModel], optimizer: GuardedOptimizer) -> None:
    """Reads what a snapshot wrote, for a model of the same shape in any layout of ranks.

    A `ModelError` says that it could not; weights are then neither the old nor the new.
    """
    if not dist_checkpointing.check_is_distributed_checkpoint(str(folder)):
        raise ModelError(
            "this is not a checkpoint", place=str(folder), remedy="name a folder that a checkpoint was saved to"
        )
    wanted, random = _sharded_state(chunks, optimizer, is_loading=True), _sharded_random_state(ground.parallel)
    try:
        is_same_layout = random.unique_key in FileSystemReader(folder).read_metadata().state_dict_metadata
        if is_same_layout:
            wanted["random"] = random
        state = dist_checkpointing.load(wanted, str(folder))
    except (CheckpointingException, CheckpointException, UnpicklingError, EOFError, KeyError, OSError) as error:
        raise ModelError(
            f"the checkpoint cannot be read: {cause_of(error)}",
            place=str(folder),
            remedy="resume with the model that the checkpoint was saved from, or from an older checkpoint",
        ) from error
    for index, chunk in enumerate(chunks):
        chunk.load_state_dict(state["model"][f"model{index}"])
    optimizer.load_state(state["optimizer"], state["updates"], state["scheduler"])
    if is_same_layout:
        _set_random_state(state["random"])
    else:
        _renew_random_state(ground, num_steps=optimizer.scheduler.num_steps)


def _sharded_state(chunks: Sequence[GPTModel], optimizer: GuardedOptimizer, *, is_loading: bool) -> ShardedStateDict:
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    # Megatron's own names for the pieces of an interleaved pipeline.
    weights = {f"model{index}": chunk.sharded_state_dict(metadata=metadata) for index, chunk in enumerate(chunks)}
    return {
        "model": weights,
        "optimizer": optimizer.sharded_state(weights, is_loading=is_loading),
        "updates": optimizer.num_updates,
        "scheduler": optimizer.scheduler.state_dict(),
    }


def _sharded_random_state(parallel: ParallelConfig) -> ShardedObject:
    state = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if runtime.USE_CUDA else None,
        "megatron": get_cuda_rng_tracker().get_states(),
    }
    sizes = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
    layout = "-".join(f"{name}{getattr(parallel, name)}" for name in sizes)
    return ShardedObject(
        f"random-{layout}",
        state,
        global_shape=(dist.get_world_size(),),
        global_offset=(dist.get_rank(),),
        replica_id=0,
    )


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["torch"])
    if runtime.USE_CUDA:
        torch.cuda.set_rng_state(state["cuda"])
    get_cuda_rng_tracker().set_states(state["megatron"])


def _renew_random_state(ground: Ground, *, num_steps: int) -> None:
    logger.info("the checkpoint is of another layout of ranks: random states are made anew for step %d", num_steps)
    # Below 2³¹: Megatron adds to it.
    runtime.seed_random(zlib.crc32(f"{ground.seed}/{num_steps}".encode()) >> 1)
