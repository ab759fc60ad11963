"""Megatron's distributed checkpoint of a trained model: weights, optimizer, schedule, random states.

Owns what is in it and how it is written. Written by this process alone: the library's own writer forks
processes and leaves a manager behind when the learner is killed.
"""

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedStateDict
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_state_dict

from async_rl.errors import ModelError
from learner.megatron import runtime
from learner.megatron.optimizer import GuardedOptimizer


def save(folder: Path, chunks: Sequence[GPTModel], optimizer: GuardedOptimizer) -> None:
    """Writes to a folder, made if missing; on return everything is on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(
        _sharded_state(chunks, optimizer, is_loading=False),
        str(folder),
        sharded_strategy=_InProcessSave("torch_dist", 1),
    )


def load(folder: Path, chunks: Sequence[GPTModel], optimizer: GuardedOptimizer) -> None:
    """Reads what `save` wrote, for a model of the same shape in any parallel layout.

    A `ModelError` says that it could not; weights are then neither the old nor the new.
    """
    if not dist_checkpointing.check_is_distributed_checkpoint(str(folder)):
        raise ModelError(
            "this is not a checkpoint", place=str(folder), remedy="name a folder that a checkpoint was saved to"
        )
    wanted = _sharded_state(chunks, optimizer, is_loading=True)
    try:
        state = dist_checkpointing.load(wanted, str(folder))
    except (CheckpointingException, CheckpointException, UnpicklingError, EOFError, KeyError, OSError) as error:
        raise ModelError(
            f"the checkpoint cannot be read: {_cause(error)}",
            place=str(folder),
            remedy="resume with the model that the checkpoint was saved from, or from an older checkpoint",
        ) from error
    for index, chunk in enumerate(chunks):
        chunk.load_state_dict(state["model"][f"model{index}"])
    optimizer.load_state(state["optimizer"], state["scheduler"])
    _set_random_state(state["random"])


def _cause(error: BaseException) -> str:
    # torch's exception (no `Exception`, so it would pass every handler) holds the failures of each rank.
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return (str(error).splitlines() or [type(error).__name__])[0]


def _sharded_state(chunks: Sequence[GPTModel], optimizer: GuardedOptimizer, *, is_loading: bool) -> ShardedStateDict:
    metadata = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    # Megatron's own names for the pieces of an interleaved pipeline.
    weights = {f"model{index}": chunk.sharded_state_dict(metadata=metadata) for index, chunk in enumerate(chunks)}
    return {
        "model": weights,
        "optimizer": optimizer.optimizer.sharded_state_dict(weights, is_loading, metadata=metadata),
        "scheduler": optimizer.scheduler.state_dict(),
        "random": _sharded_random_state(),
    }


def _sharded_random_state() -> ShardedObject:
    pipeline = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    tensor = (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size())
    state = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if runtime.USE_CUDA else None,
        "megatron": get_cuda_rng_tracker().get_states(),
    }
    return ShardedObject(
        "random",
        state,
        global_shape=(pipeline[1], tensor[1]),
        global_offset=(pipeline[0], tensor[0]),
        replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["torch"])
    if runtime.USE_CUDA:
        torch.cuda.set_rng_state(state["cuda"])
    get_cuda_rng_tracker().set_states(state["megatron"])


class _InProcessSave(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """The same files as Megatron's strategy, written by torch's own synchronous writer."""

    def save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: str) -> None:
        flat, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        save_state_dict(
            mcore_to_pyt_state_dict(flat, False),
            storage_writer=FileSystemWriter(checkpoint_dir, thread_count=1),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )
