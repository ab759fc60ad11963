"""The processes of a run, as Ray makes actors of them: thin shells that set a process up and call its entry.

Heavy imports stand inside the methods on purpose: the driver must not load vllm, megatron or aim, and an actor
must set its environment and its cores before any of them is loaded. This is the one folder where that is allowed.
"""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray

from async_rl.config.schema import RunConfig
from async_rl.launch.process import set_up_process
from async_rl.launch.semaphores import name_semaphores
from async_rl.run_folder import RunFolder
from async_rl.tracking.record import Record
from async_rl.weights.slots import remove_stale


class GeneratorActor:
    """One generator; a call of `run` is one incarnation and returns at the controller's `End`."""

    def __init__(
        self, config: RunConfig, *, index: int, cores: list[int] | None, folder: RunFolder, run_id: str
    ) -> None:
        self._config = config
        self._index = index
        self._run_id = run_id
        self._cores = cores
        self._folder = folder

    def run(self, address: str, scores: str | None) -> None:
        """Serves the controller at this address, with scores from a reward model at the other, if there is one."""
        name = f"generator-{self._index}"
        set_up_process(name, self._folder.logs, cores=self._cores)
        name_semaphores(self._run_id)
        from generators.process import run_generator

        asyncio.run(
            run_generator(
                self._config,
                index=self._index,
                address=address,
                scores=scores,
                cores=self._cores,
                incarnation=f"{name}-{os.urandom(4).hex()}",
            )
        )


class LearnerActor:
    """One rank of the learner, for one life; `run` returns after the last checkpoint and the export."""

    def __init__(
        self, config: RunConfig, *, rank: int, cores: list[int] | None, folder: RunFolder, run_id: str
    ) -> None:
        set_up_process(f"learner-{rank}", folder.logs, cores=cores)
        # Of an earlier life, perhaps on another node: what a killed process published stays in memory.
        remove_stale()
        self._config = config
        self._rank = rank
        self._folder = folder
        self._run_id = run_id

    def meeting_place(self) -> str:
        """Where the ranks can find each other."""
        return free_address()

    def run(self, *, address: str, rendezvous: str, incarnation: str, world_size: int, checkpoint: Path | None) -> None:
        """Trains for the controller at this address, from a checkpoint if there is one."""
        os.environ["OMP_NUM_THREADS"] = str(self._config.learner.num_threads)
        from learner.process import run_learner

        run_learner(
            self._config,
            rank=self._rank,
            world_size=world_size,
            rendezvous=rendezvous,
            address=address,
            incarnation=incarnation,
            run_folder=self._folder.path,
            run_id=self._run_id,
            checkpoint=checkpoint,
        )


class RewardModelActor:
    """A reward model: `open` it, then `run` serves generators until the process ends."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        set_up_process("reward-model", folder.logs, cores=None)
        self._config = config

    def open(self) -> str:
        """Loads the model; returns where it can listen, in each of its lives."""
        os.environ["OMP_NUM_THREADS"] = "1"
        from generators.reward_model import RewardModel

        self._model = RewardModel(self._config.reward.model, num_threads=1)
        return free_address()

    def run(self, address: str) -> None:
        """Serves at this address."""
        from generators.reward_model_process import serve_at

        asyncio.run(serve_at(address, self._model, max_message_bytes=self._config.channel.max_message_mib << 20))


def free_address() -> str:
    """`HOST:PORT` on this node, free at the moment."""
    host = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return f"[{host}]:{probe.getsockname()[1]}" if ":" in host else f"{host}:{probe.getsockname()[1]}"


class TrackerActor:
    """The one sink of metrics."""

    def __init__(self, folder: RunFolder) -> None:
        set_up_process("tracker", folder.logs, cores=None)
        self._folder = folder

    def open(
        self, *, aim_repo: Path | None, name: str, params: Mapping[str, object], run_hash: str | None
    ) -> str | None:
        """Opens the run's files; returns Aim's name of the run."""
        from async_rl.tracking.sink import MetricsSink

        self._sink = MetricsSink(
            metrics=self._folder.metrics, aim_repo=aim_repo, name=name, params=params, run_hash=run_hash
        )
        return self._sink.run_hash()

    def write(self, records: Sequence[Record]) -> None:
        """Takes records, in the order of the calls."""
        self._sink.write(records)

    def close(self) -> None:
        """Everything written can be read afterwards."""
        self._sink.close()
