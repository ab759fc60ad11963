"""The processes of a run on a Ray cluster: started together, reached by name, ended together.

Owns Ray's start and stop and the actors' handles. Knows nothing of what they say to each other.
"""

import logging
import os
from pathlib import Path

import ray
from ray.actor import ActorHandle

from async_rl.config.schema import RunConfig
from async_rl.errors import ResourceError
from async_rl.launch.actors import GeneratorActor, LearnerActor, TrackerActor
from async_rl.launch.remote_sink import RemoteSink
from async_rl.placement import place
from async_rl.run_folder import RunFolder

TERMINATE_TIMEOUT_S = 5.0


class Cluster:
    """Ray and the actors of one run."""

    def __init__(self, config: RunConfig, folder: RunFolder, *, run_id: str) -> None:
        self._config = config
        self._folder = folder
        self._run_id = run_id
        self.generators: dict[str, ActorHandle] = {}
        self._actors: list[ActorHandle] = []

    def start(self) -> None:
        """Starts Ray (or joins a cluster), then every process.

        Raises:
            ResourceError: there is no cluster at `cluster.address`.
        """
        num_generators = self._config.generation.num_generators
        self._start_ray(num_cpus=num_generators + 1)
        placement = place(
            num_generators=num_generators,
            cores=sorted(os.sched_getaffinity(0)),
            pin=self._config.cluster.pin_cores,
        )
        tracker = ray.remote(num_cpus=0)(TrackerActor).remote(self._folder)
        self.sink = RemoteSink(tracker, self._folder.metrics)
        generator = ray.remote(num_cpus=1, max_restarts=self._config.generation.max_restarts)(GeneratorActor)
        self.generators = {
            f"generator-{index}": generator.remote(
                self._config, index=index, cores=cores, folder=self._folder, run_id=self._run_id
            )
            for index, cores in enumerate(placement.generators)
        }
        self._learner = ray.remote(num_cpus=1)(LearnerActor).remote(
            self._config, cores=placement.learner, folder=self._folder, run_id=self._run_id
        )
        self._actors = [tracker, self._learner, *self.generators.values()]

    def _start_ray(self, *, num_cpus: int) -> None:
        address = self._config.cluster.address
        try:
            ray.init(
                address=address or None,
                num_cpus=None if address else num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError) as error:
            if not address:
                raise
            raise ResourceError(
                f"no Ray cluster at {address}: {error}",
                place="cluster.address",
                remedy="give the address of a running cluster, HOST:6379, or leave it empty to start Ray here",
            ) from error

    async def run_learner(self, address: str, checkpoint: Path | None) -> None:
        """Returns when the learner has left."""
        await self._learner.run.remote(address, checkpoint)

    def stop(self) -> None:
        """Ends every process that is left: those that can by themselves first, since only they tidy up."""
        if not ray.is_initialized():
            return
        leaving = [actor.__ray_terminate__.remote() for actor in self._actors]
        ray.wait(leaving, num_returns=len(leaving), timeout=TERMINATE_TIMEOUT_S)
        ray.shutdown()
