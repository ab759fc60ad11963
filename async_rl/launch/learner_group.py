"""The learner's ranks as Ray actors, one life after the other.

Owns the names of their lives and what they are told. What is done about a death is the supervisor's.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from async_rl.config.schema import RunConfig
from async_rl.launch.actors import LearnerActor
from async_rl.launch.rank_group import Arguments, RankGroup
from async_rl.run_folder import RunFolder


class LearnerGroup:
    """All ranks of one learner.

    incarnations = group.begin()
    failures = await group.run(address, checkpoint)     # none: all have left
    await group.end()                                   # then it can begin again
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        seats: Sequence[PlacementGroupSchedulingStrategy],
        num_gpus: int,
        cores: Sequence[list[int] | None],
        folder: RunFolder,
        run_id: str,
    ) -> None:
        """
        Args:
            config: the run.
            seats: where each rank runs.
            num_gpus: of each rank.
            cores: that each rank is pinned to.
            folder: the run's.
            run_id: names its shared memory.
        """
        self._config = config
        self._cores = cores
        self._folder = folder
        self._run_id = run_id
        self._incarnations: list[str] = []
        self._ranks = RankGroup("learner", LearnerActor, seats=seats, num_gpus=num_gpus)

    @property
    def actors(self) -> Sequence[ActorHandle]:
        """Of this life, by rank."""
        return self._ranks.actors

    def begin(self) -> frozenset[str]:
        """Starts a process for each rank; returns the names of these lives."""
        life = os.urandom(4).hex()
        self._incarnations = [f"learner-{rank}-{life}" for rank in range(self._ranks.world_size)]
        self._ranks.begin(self._process)
        return frozenset(self._incarnations)

    def _process(self, rank: int) -> Arguments:
        return {
            "config": self._config,
            "rank": rank,
            "cores": self._cores[rank],
            "folder": self._folder,
            "run_id": self._run_id,
        }

    async def run(self, address: str, checkpoint: Path | None) -> dict[str, RayError]:
        """Trains until all ranks have left, or some cannot go on; returns what became of these, by name.

        Args:
            address: of the controller.
            checkpoint: where to go on from; None begins with the model's own weights.
        """

        def task(rank: int, rendezvous: str) -> Arguments:
            return {
                "address": address,
                "rendezvous": rendezvous,
                "incarnation": self._incarnations[rank],
                "world_size": self._ranks.world_size,
                "checkpoint": checkpoint,
            }

        return await self._ranks.run(task)

    async def end(self) -> None:
        """Ends every process that is left, at once."""
        await self._ranks.end()
