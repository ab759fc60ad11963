"""Watches the processes of a run: starts dead generators again, and tells the controller who died.

Owns what is done about a death. A generator is started again up to `generation.max_restarts` times; one that
is beyond that is left out, and the run ends only with the last of them. The learner's death ends the run: it is
resumed from its last checkpoint. So do metrics that cannot be written, since they are the record of a run. A
user's mistake, raised in any process, ends the run with its own words.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError

from async_rl.controller.controller import Controller
from async_rl.disk import RUN_REMEDY, is_full
from async_rl.errors import ResourceError, RunError, UserError

logger = logging.getLogger(__name__)

RESTART_S = 2.0
"""Ray ends a process, and begins another, in about a second."""
MAX_REASON = 300
"""Characters of a reason on the terminal; the log has it whole."""


class Supervisor:
    """One task a process."""

    def __init__(self, controller: Controller, *, max_restarts: int, folder: Path) -> None:
        """Watches for a controller; `folder` is the run's, whose disk may be what its processes failed of."""
        self._controller = controller
        self._folder = folder
        self._max_restarts = max_restarts
        self._living: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._tracker_task: asyncio.Task[None] | None = None

    def watch_generator(self, name: str, actor: ActorHandle, address: str) -> None:
        """Runs a generator until the run ends."""
        self._living.add(name)
        self._tasks.append(asyncio.create_task(self._keep_generator(name, actor, address), name=f"watch {name}"))

    def watch_learner(self, run: Callable[[], Awaitable[None]]) -> None:
        """Runs the learner; its end is the run's."""
        self._tasks.append(asyncio.create_task(self._follow_learner(run), name="watch learner"))

    def watch_tracker(self, follow: Callable[[], Awaitable[None]]) -> None:
        """Ends the run where metrics cannot be written any more."""
        self._tracker_task = asyncio.create_task(self._follow_tracker(follow), name="watch tracker")

    async def release(self, timeout_s: float) -> None:
        """Gives processes that were told to end the time to do so, and watches no longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        tasks = [*self._tasks, *([self._tracker_task] if self._tracker_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_generator(self, name: str, actor: ActorHandle, address: str) -> None:
        for restart in range(self._max_restarts + 1):
            try:
                await actor.run.remote(address)
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
            if restart < self._max_restarts:
                words = f"{name} is started again ({restart + 1} of {self._max_restarts} times)"
                self._controller.report(f"{words}: {reason.splitlines()[0][:MAX_REASON]}")
                # After the leases went back; a call that reached the old process would be a second death.
                await asyncio.sleep(RESTART_S)
        self._living.discard(name)
        message = f"{name} died {self._max_restarts + 1} times (generation.max_restarts={self._max_restarts}): {reason}"
        if self._living:
            self._controller.report(f"{message}. The run goes on without it.")
        else:
            self._controller.fail(RunError(f"no generator is left: {message}"))

    async def _follow_learner(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except RayError as error:
            self._controller.fail(ending(error, "the learner", self._folder))
        else:
            self._controller.learner_left()

    async def _follow_tracker(self, follow: Callable[[], Awaitable[None]]) -> None:
        try:
            await follow()
        except Exception as error:
            logger.exception("metrics cannot be written")
            self._controller.fail(error)


def ending(error: RayError, name: str, folder: Path) -> Exception:
    """What ends a run whose process `name` raised something, or died."""
    if not isinstance(error, RayTaskError):
        return RunError(f"{name} died: {first_line(error)}")
    cause: Exception = error.cause
    if isinstance(cause, UserError | RunError):
        return cause
    if is_full(folder):
        # Libraries that write checkpoints say anything but that.
        return ResourceError(f"{name} failed, and the disk is full", place=str(folder), remedy=RUN_REMEDY)
    return RunError(f"{name} failed: {type(cause).__name__}: {cause}")


def first_line(error: Exception) -> str:
    """What Ray says of a death, without its page of advice."""
    return str(error).strip().splitlines()[0]
