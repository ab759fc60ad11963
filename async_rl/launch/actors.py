"""The processes of a run, as Ray makes actors of them: thin shells that set a process up and call its entry.

Heavy imports stand inside the methods on purpose: the driver must not load vllm, megatron or aim, and an actor
must set its environment and its cores before any of them is loaded. This is the one folder where that is allowed.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from async_rl.config.schema import RunConfig
from async_rl.launch.process import set_up_process
from async_rl.launch.semaphores import name_semaphores
from async_rl.run_folder import RunFolder
from async_rl.tracking.record import Record


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

    def run(self, address: str) -> None:
        """Serves the controller at this address."""
        name = f"generator-{self._index}"
        set_up_process(name, self._folder.logs, cores=self._cores)
        name_semaphores(self._run_id)
        from generators.process import run_generator

        asyncio.run(
            run_generator(
                self._config,
                index=self._index,
                address=address,
                cores=self._cores,
                incarnation=f"{name}-{os.urandom(4).hex()}",
            )
        )


class LearnerActor:
    """The learner; `run` returns after the last checkpoint and the export."""

    def __init__(self, config: RunConfig, *, cores: list[int] | None, folder: RunFolder, run_id: str) -> None:
        self._config = config
        self._cores = cores
        self._folder = folder
        self._run_id = run_id

    def run(self, address: str, checkpoint: Path | None) -> None:
        """Trains for the controller at this address, from a checkpoint if there is one."""
        set_up_process("learner-0", self._folder.logs, cores=self._cores)
        os.environ["OMP_NUM_THREADS"] = str(self._config.learner.num_threads)
        from learner.process import run_learner

        run_learner(
            self._config,
            address=address,
            incarnation=f"learner-0-{os.urandom(4).hex()}",
            run_folder=self._folder.path,
            run_id=self._run_id,
            checkpoint=checkpoint,
        )


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
