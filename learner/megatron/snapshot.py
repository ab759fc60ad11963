"""What a model was at one moment, in the host's memory, and how it is written while the model goes on.

Owns the files of one model: Megatron's distributed format. Written in any thread of this process alone: the library's
own asynchronous writer forks processes, and leaves a manager behind when the learner is killed.
"""

import copy
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedStateDict
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies.common import TorchCommonSaveStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_state_dict

from async_rl.checksums import Checksum
from async_rl.disk import RUN_REMEDY
from async_rl.errors import ResourceError

_FORMAT = ("torch_dist", 1)
"""Megatron's name of the format, and its version."""


class MegatronSnapshot:
    """This rank's part of a model."""

    def __init__(self, state: ShardedStateDict, writers: dist.ProcessGroup) -> None:
        """Copies everything that training will change; called by all ranks at once.

        Args:
            state: Megatron's description of the whole model and of this rank's part.
            writers: all ranks, a group that nothing else uses while this is written.
        """
        self._writers = writers
        sharded, common = save_preprocess(state)
        parts, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded, keep_only_main_replica=True)
        for part in (part for parts_of_key in parts.values() for part in parts_of_key):
            # Objects are pickled on the way to torch's names.
            if not isinstance(part, ShardedObject):
                part.data = part.data.detach().to("cpu", copy=True)
        self._parts = mcore_to_pyt_state_dict(parts, False)
        self._common = copy.deepcopy(common)

    def write(self, folder: Path) -> Mapping[str, Checksum]:
        """See `Snapshot`."""
        rank = dist.get_rank()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            save_state_dict(
                self._parts,
                storage_writer=FileSystemWriter(folder, thread_count=1),
                planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
                process_group=self._writers,
            )
            if rank == 0:
                TorchCommonSaveStrategy("torch", 1).save_common(self._common, folder)
                save_config(CheckpointingConfig(*_FORMAT), str(folder))
        # torch's own (no `Exception`, so it would pass every handler), and what its zip files say of a full disk.
        except (CheckpointException, OSError, RuntimeError) as error:
            raise ResourceError(
                f"cannot write a checkpoint: {cause_of(error)}", place=str(folder), remedy=RUN_REMEDY
            ) from error
        return self._tell({path.name: Checksum.of(path) for path in _own_files(folder, rank)})

    def _tell(self, own: dict[str, Checksum]) -> dict[str, Checksum]:
        everyones: list[dict[str, Checksum] | None] = [None] * dist.get_world_size()
        is_speaker = dist.get_rank() == 0
        dist.gather_object(own, everyones if is_speaker else None, dst=0, group=self._writers)
        return {name: sum_ for sums in everyones if sums is not None for name, sum_ in sums.items()}


def _own_files(folder: Path, rank: int) -> list[Path]:
    """Those that a rank wrote: its tensors and objects, and the first one what is of all."""
    shards = set(folder.glob("*.distcp"))
    own = set(folder.glob(f"__{rank}_*.distcp"))
    return sorted(own | (set(folder.iterdir()) - shards if rank == 0 else set()))


def cause_of(error: BaseException) -> str:
    """The first line of what went wrong on the first rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return (str(error).splitlines() or [type(error).__name__])[0]
