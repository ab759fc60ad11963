"""Ranks that compute together, as Ray actors: begun together, followed to their end, ended together.

Owns the actors and where they meet. What they do, and what is done about a death, is not its business.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

logger = logging.getLogger(__name__)

SETTLE_S = 3.0
"""Ranks that compute with a dead one raise too, some sooner than Ray says that it is dead: so long all are heard."""
END_TIMEOUT_S = 10.0
"""For Ray to see the death of processes that it has killed."""

Arguments = Mapping[str, object]


class RankGroup:
    """All ranks of one model. Their class has `meeting_place()`, which is asked of the first, and `run(…)`."""

    def __init__(
        self, name: str, kind: type, *, seats: Sequence[PlacementGroupSchedulingStrategy], num_gpus: int
    ) -> None:
        """
        Args:
            name: of a rank without its number, for messages.
            kind: class of the actors.
            seats: where each rank runs.
            num_gpus: of each rank.
        """
        self._name = name
        self._kind = kind
        self._seats = seats
        self._num_gpus = num_gpus
        self._calls: dict[str, asyncio.Task[None]] = {}
        self.actors: list[ActorHandle] = []

    @property
    def world_size(self) -> int:
        """How many ranks."""
        return len(self._seats)

    def begin(self, arguments: Callable[[int], Arguments], *, num_threads: int = 1) -> None:
        """Starts a process for each rank.

        Args:
            arguments: of the class, by rank.
            num_threads: that answer calls at once.
        """
        actor = ray.remote(num_cpus=1, num_gpus=self._num_gpus, max_concurrency=num_threads)(self._kind)
        self.actors = [
            actor.options(scheduling_strategy=seat).remote(**arguments(rank)) for rank, seat in enumerate(self._seats)
        ]

    async def run(self, arguments: Callable[[int, str], Arguments]) -> dict[str, RayError]:
        """Follows all ranks until they have left, or some cannot go on; returns what became of these, by name.

        Args:
            arguments: of `run`, by rank and the meeting place.
        """
        try:
            rendezvous: str = await self.actors[0].meeting_place.remote()
        except RayError as error:
            return {f"{self._name}-0": error}
        self._calls = {
            f"{self._name}-{rank}": asyncio.create_task(self._follow(actor, arguments(rank, rendezvous)))
            for rank, actor in enumerate(self.actors)
        }
        _, running = await asyncio.wait(self._calls.values(), return_when=asyncio.FIRST_EXCEPTION)
        if running:
            await asyncio.wait(running, timeout=SETTLE_S)
        failures: dict[str, RayError] = {}
        for name, call in self._calls.items():
            ended = call.exception() if call.done() else None
            if isinstance(ended, RayError):
                failures[name] = ended
            elif ended is not None:
                # Not a rank's: the call itself could not be made.
                raise ended
        return failures

    async def _follow(self, actor: ActorHandle, arguments: Arguments) -> None:
        await actor.run.remote(**arguments)

    async def end(self) -> None:
        """Ends every process that is left, at once: it may hang in a computation with a dead one."""
        for actor in self.actors:
            ray.kill(actor)
        if self._calls:
            _, running = await asyncio.wait(self._calls.values(), timeout=END_TIMEOUT_S)
            for call in running:
                logger.warning(
                    "a %s rank was killed, and Ray has not seen its death in %g s", self._name, END_TIMEOUT_S
                )
                call.cancel()
        self._calls = {}
