"""The processes of a run on a Ray cluster: started together, reached by name, ended together.

Owns Ray's start and stop and the actors' handles. Knows nothing of what they say to each other.
"""

import os

import ray
from ray.actor import ActorHandle

from async_rl.config.ranks import num_ranks
from async_rl.config.schema import RunConfig
from async_rl.launch.actors import GeneratorActor, RewardModelActor, TrackerActor
from async_rl.launch.learner_group import LearnerGroup
from async_rl.launch.ray_session import start_ray
from async_rl.launch.remote_sink import RemoteSink
from async_rl.launch.reservation import Reservation
from async_rl.placement import generator_bundles, learner_bundles, place, reward_model_bundles
from async_rl.run_folder import RunFolder

TERMINATE_TIMEOUT_S = 5.0


class Cluster:
    """Ray and the actors of one run."""

    def __init__(self, config: RunConfig, folder: RunFolder, *, run_id: str) -> None:
        self._config = config
        self._folder = folder
        self._run_id = run_id
        self._reservation: Reservation | None = None
        self._learner: LearnerGroup | None = None
        self._actors: list[ActorHandle] = []
        self.generators: dict[str, ActorHandle] = {}
        self.reward_model: ActorHandle | None = None

    def start(self) -> None:
        """Starts Ray (or joins a cluster), then every process but the learner's, which its supervisor begins.

        Raises:
            ResourceError: there is no cluster at `cluster.address`, or it has no room.
        """
        config = self._config
        num_generators, ranks = config.generation.num_generators, num_ranks(config)
        bundles, models = generator_bundles(config), reward_model_bundles(config)
        start_ray(config.cluster.address, num_cpus=num_generators + ranks + len(models))
        self._reservation = Reservation(
            bundles,
            learner_bundles(config),
            models,
            place="cluster.address, learner.parallel, generation.num_generators, generation.tp",
        )
        placement = place(
            num_generators=num_generators,
            num_ranks=ranks,
            cores=sorted(os.sched_getaffinity(0)),
            pin=config.cluster.pin_cores and not config.cluster.gpus_per_node,
        )
        tracker = ray.remote(num_cpus=0)(TrackerActor).remote(self._folder)
        self.sink = RemoteSink(tracker, self._folder.metrics)
        generator = ray.remote(max_restarts=config.generation.max_restarts)(GeneratorActor)
        self.generators = {
            f"generator-{index}": generator.options(
                num_cpus=bundle.cpus, num_gpus=bundle.gpus, scheduling_strategy=self._reservation.generators[index]
            ).remote(config, index=index, cores=placement.generators[index], folder=self._folder, run_id=self._run_id)
            for index, bundle in enumerate(bundles)
        }
        self._learner = LearnerGroup(
            config,
            seats=self._reservation.ranks,
            num_gpus=int(config.cluster.gpus_per_node > 0),
            cores=placement.ranks,
            folder=self._folder,
            run_id=self._run_id,
        )
        self._actors = [tracker, *self.generators.values()]
        if models:
            model = ray.remote(max_restarts=config.reward.model.max_restarts)(RewardModelActor)
            self.reward_model = model.options(
                num_cpus=models[0].cpus, num_gpus=models[0].gpus, scheduling_strategy=self._reservation.reward_models[0]
            ).remote(config, self._folder)
            self._actors.append(self.reward_model)

    @property
    def learner(self) -> LearnerGroup:
        """Its ranks, once there is a cluster."""
        assert self._learner is not None
        return self._learner

    def stop(self) -> None:
        """Ends every process that is left: those that can by themselves first, since only they tidy up."""
        if not ray.is_initialized():
            return
        actors = [*self._actors, *(self._learner.actors if self._learner else [])]
        leaving = {actor.__ray_terminate__.remote(): actor for actor in actors}
        _, late = ray.wait(list(leaving), num_returns=len(leaving), timeout=TERMINATE_TIMEOUT_S)
        for call in late:
            ray.kill(leaving[call])
        if self._reservation is not None:
            self._reservation.release()
        ray.shutdown()
