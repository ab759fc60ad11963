"""One generator: takes leases as long as there is room, delivers finished groups, takes new weights meanwhile.

    receive  ── Grant ───────► a task a group ── Delivery ──► outbox ── kept until Ack, sent again at every Welcome
             ── Withdraw ────► cancels it
             ── Published ───► update task: what was published last only, which after the learner has gone back to a
                               checkpoint has a smaller number than what is active ── Activated
    credit task: sends how many more groups fit, whenever that number changes
    heartbeat task: sends GeneratorStats and RewardFailures every `channel.heartbeat_s`, and so does every delivery

Owns these tasks and their end. What an engine does it leaves to the engine, what a group does to the sampler; it knows
no Ray, no sockets and no controller.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from async_rl.errors import ChannelError, WeightsError
from async_rl.protocol import (
    Ack,
    Activated,
    Activation,
    ControllerMessage,
    Credit,
    Delivery,
    End,
    GeneratorStats,
    Grant,
    GroupFailed,
    Heartbeat,
    Lease,
    Published,
    Purpose,
    Refused,
    Welcome,
    Withdraw,
)
from generators.engine import Engine
from generators.group import GroupSampler, GroupUnfinished, first_leaf
from generators.link import ControllerLink
from generators.outbox import Outbox
from generators.reward import RewardRunner
from generators.slots import Reservation, Slots

logger = logging.getLogger(__name__)


class Generator:
    """Serves one controller until its `End`.

    `run` raises what the engine raises: after that the process has to end, so that no half-loaded model samples.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        rewards: RewardRunner,
        link: ControllerLink,
        incarnation: str,
        requests_per_group: int,
        max_concurrent: int,
        max_retries: int,
        heartbeat_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._rewards = rewards
        self._link = link
        self._requests_per_group = requests_per_group
        self._heartbeat_s = heartbeat_s
        self._slots = Slots(max_concurrent, clock)
        self._sampler = GroupSampler(
            engine=engine,
            rewards=rewards,
            slots=self._slots,
            incarnation=incarnation,
            max_retries=max_retries,
        )
        self._outbox = Outbox()
        self._groups: dict[tuple[Purpose, int], asyncio.Task[None]] = {}
        self._credit_changed = asyncio.Event()
        self._received = 0
        """Leases since the last `Welcome`."""
        self._sent_limit: int | None = None
        self._newest: Published | None = None
        self._newest_changed = asyncio.Event()

    async def run(self) -> None:
        """Works until the controller says `End`, refuses us (`ChannelError`), or the engine fails."""
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [
                    tasks.create_task(self._send_credits(), name="credits"),
                    tasks.create_task(self._send_heartbeats(), name="heartbeats"),
                    tasks.create_task(self._update_weights(), name="weights"),
                ]
                await self._serve(tasks)
                for task in [*helpers, *self._groups.values()]:
                    task.cancel()
        except BaseExceptionGroup as failures:
            # All the others were cancelled because of the first.
            raise first_leaf(failures) from failures

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            message = await self._link.receive()
            if isinstance(message, End):
                logger.info("the run is over: %s", message.reason)
                return
            await self._handle(message, tasks)

    async def _handle(self, message: ControllerMessage, tasks: asyncio.TaskGroup) -> None:
        match message:
            case Grant(leases=leases):
                self._received += len(leases)
                for lease in leases:
                    self._begin(lease, tasks)
                self._credit_changed.set()
            case Ack():
                self._outbox.acknowledge(message)
            case Withdraw(group_ids=group_ids, purpose=purpose):
                for group_id in group_ids:
                    self._withdraw(purpose, group_id)
            case Published():
                self._newest = message
                self._newest_changed.set()
            case Welcome():
                await self._say_everything_again()
            case Refused(reason=reason):
                raise ChannelError(f"the controller refused this generator: {reason}")
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a generator")

    async def _say_everything_again(self) -> None:
        """A (re)connected controller may have lost whatever was under way, and may be a new one."""
        for delivery in self._outbox:
            await self._link.send(delivery)
        await self._report()
        self._received = 0
        self._sent_limit = None
        self._credit_changed.set()

    def _begin(self, lease: Lease, tasks: asyncio.TaskGroup) -> None:
        key = (lease.purpose, lease.group_id)
        if key in self._groups:
            # A later attempt of the same group: nobody waits for the earlier one.
            self._groups[key].cancel()
        reservation = Reservation(self._slots, lease.num_requests, self._credit_changed.set)
        task = tasks.create_task(self._work_on(lease, reservation), name=f"group-{lease.group_id}.{lease.attempt}")
        self._groups[key] = task

        def finish(task: asyncio.Task[None]) -> None:
            # A callback, since a task that is cancelled before its first step never runs its own `finally`.
            reservation.close()
            if self._groups.get(key) is task:
                del self._groups[key]

        task.add_done_callback(finish)

    def _withdraw(self, purpose: Purpose, group_id: int) -> None:
        self._outbox.withdraw(purpose, group_id)
        task = self._groups.get((purpose, group_id))
        if task is not None:
            task.cancel()

    async def _work_on(self, lease: Lease, reservation: Reservation) -> None:
        try:
            async with asyncio.timeout(lease.timeout_s) as deadline:
                group = await self._sampler.sample(lease, reservation)
        except TimeoutError:
            if not deadline.expired():
                raise
            # The controller counts the same time and leases the group again.
            logger.warning("group %d was not done in its lease of %g s", lease.group_id, lease.timeout_s)
            return
        except GroupUnfinished as unfinished:
            await self._give_back(lease, str(unfinished))
            return
        delivery = Delivery(purpose=lease.purpose, group=group)
        self._outbox.put(delivery)
        # Before it, so that a run's counters hold what made its last batch.
        await self._report()
        try:
            await self._link.send(delivery)
        except ChannelError as too_large:
            self._outbox.withdraw(lease.purpose, lease.group_id)
            await self._give_back(lease, str(too_large))

    async def _give_back(self, lease: Lease, reason: str) -> None:
        logger.warning("group %d goes back: %s", lease.group_id, reason)
        failed = GroupFailed(purpose=lease.purpose, group_id=lease.group_id, attempt=lease.attempt, reason=reason)
        await self._link.send(failed)

    async def _send_credits(self) -> None:
        while True:
            await self._credit_changed.wait()
            self._credit_changed.clear()
            limit = self._received + self._slots.credit(self._requests_per_group)
            if limit != self._sent_limit:
                self._sent_limit = limit
                await self._link.send(Credit(limit=limit))

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self._report()

    async def _report(self) -> None:
        for failures in self._rewards.take_failures():
            await self._link.send(failures)
        await self._link.send(Heartbeat(stats=self._stats()))

    async def _update_weights(self) -> None:
        """Takes what was published last; versions that were published while one was loading are skipped."""
        while True:
            await self._newest_changed.wait()
            self._newest_changed.clear()
            newest = self._newest
            assert newest is not None
            version = newest.manifest.version
            try:
                timing = await self._engine.update_weights(newest.manifest)
            except WeightsError as error:
                if self._newest is newest:
                    logger.warning("version %d is not activated: %s", version, error)
                continue
            activation = Activation(version=version, transfer_s=timing.transfer_s, pause_s=timing.pause_s)
            await self._link.send(Activated(activation=activation, history=newest.history))

    def _stats(self) -> GeneratorStats:
        return GeneratorStats(
            active_version=self._engine.active_version,
            running_requests=self._slots.running,
            sampled_tokens=self._sampler.sampled_tokens,
            elapsed_s=self._slots.elapsed_s,
            idle_s=self._slots.idle_s,
            paused_s=self._engine.paused_s,
            reward_errors=self._rewards.errors,
            reward_timeouts=self._rewards.timeouts,
            resampled=self._sampler.resampled,
        )
