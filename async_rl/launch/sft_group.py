"""Fine-tuning on several ranks, each a Ray actor.

Owns their start and end, and the way of news from the first of them to whoever watches.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from async_rl.config.ranks import num_sft_ranks
from async_rl.config.schema import SftConfig
from async_rl.errors import RunError
from async_rl.launch.cluster_address import check_cluster
from async_rl.launch.deaths import account, culprit, ending
from async_rl.launch.rank_group import RankGroup
from async_rl.launch.ray_session import start_ray
from async_rl.launch.reservation import Reservation
from async_rl.launch.sft_actor import NUM_THREADS, SftActor
from async_rl.launch.stop_request import StopRequest
from async_rl.placement import place, sft_bundles
from async_rl.summary import Exit
from learner.sft_events import Tell
from learner.sft_start import SftStart


class SftGroup:
    """The ranks of one fine-tuning."""

    def __init__(self, config: SftConfig) -> None:
        self._config = config

    def train(self, start: SftStart, tell: Tell, stop: StopRequest) -> Exit:
        """Starts Ray and all ranks, and follows them to their end.

        Raises:
            UserError: there is no cluster or it has no room, or a rank found a mistake.
            RunError: a rank died, or could not go on.
        """
        config = self._config
        check_cluster(config.cluster.address)
        start_ray(config.cluster.address, num_cpus=num_sft_ranks(config))
        try:
            # Ray has set handlers of its own.
            with stop.listening():
                return self._train(start, tell, stop)
        finally:
            ray.shutdown()

    def _train(self, start: SftStart, tell: Tell, stop: StopRequest) -> Exit:
        uses_gpus = self._config.cluster.gpus_per_node > 0
        reservation = Reservation([], sft_bundles(self._config), [], place="cluster.address, parallel")
        try:
            group = RankGroup("rank", SftActor, seats=reservation.ranks, num_gpus=int(uses_gpus))
            return asyncio.run(self._follow(group, start, tell, stop))
        finally:
            reservation.release()

    async def _follow(self, group: RankGroup, start: SftStart, tell: Tell, stop: StopRequest) -> Exit:
        cluster, world_size = self._config.cluster, group.world_size
        cores = place(
            num_generators=0,
            num_ranks=world_size,
            cores=sorted(os.sched_getaffinity(0)),
            pin=cluster.pin_cores and not cluster.gpus_per_node,
        ).ranks
        own = {"config": self._config, "start": start, "directory": Path.cwd()}
        group.begin(lambda rank: {**own, "rank": rank, "cores": cores[rank]}, num_threads=NUM_THREADS)
        ranks = asyncio.create_task(
            group.run(lambda rank, rendezvous: {"rendezvous": rendezvous, "world_size": world_size})
        )
        try:
            exit_ = await _pass_on(group.actors, ranks, tell, stop)
            failures = await ranks
        finally:
            ranks.cancel()
            await group.end()
        if failures:
            name = culprit(failures)
            raise ending(name, failures[name], start.folder.path) or RunError(account(name, failures[name]))
        assert exit_ is not None
        return exit_


async def _pass_on(
    actors: Sequence[ActorHandle], ranks: asyncio.Task[dict[str, RayError]], tell: Tell, stop: StopRequest
) -> Exit | None:
    """Tells what the first rank tells, until it says how it ended; None where the ranks ended otherwise."""
    is_stop_told = False
    while not ranks.done():
        if stop.is_made and not is_stop_told:
            is_stop_told = True
            actors[0].stop.remote()
        if stop.take_wish():
            actors[0].checkpoint.remote()
        try:
            news = await actors[0].news.remote()
        except RayError:
            # What became of it, `ranks` says.
            return None
        for event in news:
            if isinstance(event, Exit):
                return event
            tell(event)
    return None
