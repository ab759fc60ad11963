"""Watches the processes of a run: starts dead ones again, and tells the controller who died.

Owns what is done about a death. A generator is started again up to `generation.max_restarts` times; one that
is beyond that is left out, and the run ends only with the last of them. Where a rank of the learner dies, all are
ended and started again from the last checkpoint, up to `learner.max_restarts` times; where that is damaged, from the
one before. Metrics that cannot be written
end the run, since they are the record of it. So does a user's mistake, raised in any process, with its own words.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError

from async_rl.controller.controller import Controller
from async_rl.errors import DamagedCheckpoint, RunError, UserError
from async_rl.launch.deaths import MAX_REASON, account, culprit, ending, first_line

logger = logging.getLogger(__name__)

RESTART_S = 2.0
"""Ray ends a process, and begins another, in about a second."""


class Ranks(Protocol):
    """The learner's processes; see `LearnerGroup`."""

    def begin(self) -> frozenset[str]: ...

    async def run(self, address: str, checkpoint: Path | None) -> Mapping[str, RayError]: ...

    async def end(self) -> None: ...


class Supervisor:
    """One task a generator, one for the learner, one for the tracker."""

    def __init__(self, controller: Controller, *, generator_restarts: int, learner_restarts: int, folder: Path) -> None:
        """Watches for a controller; `folder` is the run's, whose disk may be what its processes failed of."""
        self._controller = controller
        self._folder = folder
        self._generator_restarts = generator_restarts
        self._learner_restarts = learner_restarts
        self._living: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._services: list[asyncio.Task[None]] = []
        """Of processes that do not end by themselves."""

    def watch_generator(self, name: str, actor: ActorHandle, address: str, scores: str | None = None) -> None:
        """Runs a generator until the run ends, with scores from a reward model at that address, if there is one."""
        self._living.add(name)
        keep = self._keep_generator(name, actor, address, scores)
        self._tasks.append(asyncio.create_task(keep, name=f"watch {name}"))

    def watch_reward_model(self, actor: ActorHandle, address: str, *, max_restarts: int) -> None:
        """Runs a reward model that is open until its process is ended; generators ask again what a death has lost."""
        keep = self._keep_reward_model(actor, address, max_restarts)
        self._services.append(asyncio.create_task(keep, name="watch reward model"))

    def watch_learner(self, ranks: Ranks, address: str, checkpoint: Path | None) -> None:
        """Runs the learner, from a checkpoint if there is one; its end is the run's."""
        task = asyncio.create_task(self._follow_learner(ranks, address, checkpoint), name="watch learner")
        self._tasks.append(task)

    def watch_tracker(self, follow: Callable[[], Awaitable[None]]) -> None:
        """Ends the run where metrics cannot be written any more."""
        self._services.append(asyncio.create_task(self._follow_tracker(follow), name="watch tracker"))

    async def release(self, timeout_s: float) -> None:
        """Gives processes that were told to end the time to do so, and watches no longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        tasks = [*self._tasks, *self._services]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- generators ----------------------------------------------------------------------------

    async def _keep_generator(self, name: str, actor: ActorHandle, address: str, scores: str | None) -> None:
        for restart in range(self._generator_restarts + 1):
            try:
                await actor.run.remote(address, scores)
                return
            except RayTaskError as error:
                cause = error.cause
                if isinstance(cause, UserError):
                    self._controller.fail(cause)
                    return
                reason = f"{type(cause).__name__}: {cause}"
                # Its state cannot be trusted any more: a half-loaded engine must not sample.
                ray.kill(actor, no_restart=False)
            except RayActorError as error:
                reason = first_line(error)
            logger.warning("%s died (restart %d): %s", name, restart, reason)
            self._controller.generator_died(name, reason)
            if restart < self._generator_restarts:
                words = f"{name} is started again ({restart + 1} of {self._generator_restarts} times)"
                self._controller.report(f"{words}: {reason.splitlines()[0][:MAX_REASON]}")
                # After the leases went back; a call that reached the old process would be a second death.
                await asyncio.sleep(RESTART_S)
        self._living.discard(name)
        most = self._generator_restarts
        message = f"{name} died {most + 1} times (generation.max_restarts={most}): {reason}"
        if self._living:
            self._controller.report(f"{message}. The run goes on without it.")
        else:
            self._controller.fail(RunError(f"no generator is left: {message}"))

    # --- the learner ---------------------------------------------------------------------------

    async def _follow_learner(self, ranks: Ranks, address: str, checkpoint: Path | None) -> None:
        try:
            await self._keep_learner(ranks, address, checkpoint)
        except Exception as error:
            logger.exception("the learner cannot be kept up")
            self._controller.fail(error)

    async def _keep_learner(self, ranks: Ranks, address: str, checkpoint: Path | None) -> None:
        most, restart = self._learner_restarts, 0
        while restart <= most:
            self._controller.learner_begins(ranks.begin())
            failures = await ranks.run(address, checkpoint)
            if not failures:
                self._controller.learner_left()
                return
            name = culprit(failures)
            for rank, error in failures.items():
                logger.warning("%s (restart %d)", account(rank, error), restart, exc_info=error)
            # Before anything else: survivors wait for the dead in a computation, and could still write.
            await ranks.end()
            final = ending(name, failures[name], self._folder)
            if isinstance(final, DamagedCheckpoint) and checkpoint is not None:
                older = await self._controller.pass_over(checkpoint)
                if older is not None:
                    version = self._controller.coordinator.version
                    self._controller.report(
                        f"{final.problem}: it is set aside, and the run goes on from version {version}."
                    )
                    checkpoint = older
                    continue
            if final is not None:
                self._controller.fail(final)
                return
            if restart < most:
                checkpoint = await self._controller.roll_back()
                self._controller.report(
                    f"{account(name, failures[name])}: the learner is started again from version "
                    f"{self._controller.coordinator.version} ({restart + 1} of {most} times)."
                )
            restart += 1
        times = f" ({most + 1} times: learner.max_restarts={most})" if most else ""
        self._controller.fail(RunError(f"{account(name, failures[name])}{times}"))

    # --- the reward model ----------------------------------------------------------------------

    async def _keep_reward_model(self, actor: ActorHandle, address: str, max_restarts: int) -> None:
        for restart in range(max_restarts + 1):
            try:
                if restart:
                    await actor.open.remote()
                await actor.run.remote(address)
            except RayTaskError as error:
                final = ending("the reward model", error, self._folder)
                self._controller.fail(final or RunError(account("the reward model", error)))
                return
            except RayActorError as error:
                logger.warning("the reward model died (restart %d)", restart, exc_info=error)
                words = account("the reward model", error)
            if restart < max_restarts:
                self._controller.report(f"{words}: it is started again ({restart + 1} of {max_restarts} times).")
                await asyncio.sleep(RESTART_S)
        self._controller.fail(RunError(f"{words} (reward.model.max_restarts={max_restarts})"))

    # --- the tracker ---------------------------------------------------------------------------

    async def _follow_tracker(self, follow: Callable[[], Awaitable[None]]) -> None:
        try:
            await follow()
        except Exception as error:
            logger.exception("metrics cannot be written")
            self._controller.fail(error)
