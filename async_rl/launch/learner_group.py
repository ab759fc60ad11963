"""The learner's ranks as Ray actors: begun together, ended together, one life after the other.

Owns the actors, the names of their lives and where they meet. What is done about a death is the supervisor's.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from async_rl.config.schema import RunConfig
from async_rl.launch.actors import LearnerActor
from async_rl.run_folder import RunFolder

logger = logging.getLogger(__name__)

SETTLE_S = 3.0
"""Ranks that compute with a dead one raise too, some sooner than Ray says that it is dead: so long all are heard."""
END_TIMEOUT_S = 10.0
"""For Ray to see the death of processes that it has killed."""


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
        self._seats = seats
        self._num_gpus = num_gpus
        self._cores = cores
        self._folder = folder
        self._run_id = run_id
        self._incarnations: list[str] = []
        self._calls: dict[str, asyncio.Task[None]] = {}
        self.actors: list[ActorHandle] = []

    def begin(self) -> frozenset[str]:
        """Starts a process for each rank; returns the names of these lives."""
        life = os.urandom(4).hex()
        self._incarnations = [f"learner-{rank}-{life}" for rank in range(len(self._seats))]
        actor = ray.remote(num_cpus=1, num_gpus=self._num_gpus)(LearnerActor)
        self.actors = [
            actor.options(scheduling_strategy=seat).remote(
                self._config, rank=rank, cores=cores, folder=self._folder, run_id=self._run_id
            )
            for rank, (seat, cores) in enumerate(zip(self._seats, self._cores, strict=True))
        ]
        return frozenset(self._incarnations)

    async def run(self, address: str, checkpoint: Path | None) -> dict[str, RayError]:
        """Trains until all ranks have left, or some cannot go on; returns what became of these, by name.

        Args:
            address: of the controller.
            checkpoint: where to go on from; None begins with the model's own weights.
        """
        try:
            rendezvous: str = await self.actors[0].meeting_place.remote()
        except RayError as error:
            return {"learner-0": error}
        self._calls = {
            f"learner-{rank}": asyncio.create_task(self._follow(rank, address, rendezvous, checkpoint))
            for rank in range(len(self.actors))
        }
        _, running = await asyncio.wait(self._calls.values(), return_when=asyncio.FIRST_EXCEPTION)
        if running:
            await asyncio.wait(running, timeout=SETTLE_S)
        ends = {name: call.exception() for name, call in self._calls.items() if call.done()}
        return {name: error for name, error in ends.items() if isinstance(error, RayError)}

    async def _follow(self, rank: int, address: str, rendezvous: str, checkpoint: Path | None) -> None:
        await self.actors[rank].run.remote(
            address=address,
            rendezvous=rendezvous,
            incarnation=self._incarnations[rank],
            world_size=len(self.actors),
            checkpoint=checkpoint,
        )

    async def end(self) -> None:
        """Ends every process that is left, at once: it may hang in a computation with a dead one."""
        for actor in self.actors:
            ray.kill(actor)
        if self._calls:
            _, running = await asyncio.wait(self._calls.values(), timeout=END_TIMEOUT_S)
            for call in running:
                logger.warning("a learner rank was killed, and Ray has not seen its death in %g s", END_TIMEOUT_S)
                call.cancel()
        self._calls = {}
