"""The sink of metrics, as the driver reaches it: in a process of its own, and here when that has failed.

Owns what becomes of records whose writer has failed: metrics.jsonl is the record of a run, so this process goes on
with it; Aim is for looking, and its curves end. A disk that is full ends the run, since it has no room for a
checkpoint either.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from async_rl.errors import UserError
from async_rl.tracking.jsonl_tracker import JsonlTracker
from async_rl.tracking.record import Record

logger = logging.getLogger(__name__)


class RemoteSink:
    """Hands records over in order and never waits for them; `follow` learns what became of them."""

    def __init__(self, tracker: ActorHandle, metrics: Path) -> None:
        self._tracker = tracker
        self._metrics = metrics
        self._own: JsonlTracker | None = None
        self._handed: asyncio.Queue[tuple[Sequence[Record], Awaitable[None] | None]] = asyncio.Queue()

    async def open(
        self, *, aim_repo: Path | None, name: str, params: Mapping[str, object], run_hash: str | None
    ) -> str | None:
        """Opens the run's files; returns Aim's name of the run, None without Aim or where that cannot be written."""
        try:
            opened: str | None = await self._tracker.open.remote(
                aim_repo=aim_repo, name=name, params=params, run_hash=run_hash
            )
        except RayError as error:
            self._take_over(error, logger.warning)
            return None
        return opened

    def write(self, records: Sequence[Record]) -> None:
        """Hands records over."""
        self._handed.put_nowait((records, None if self._own else self._tracker.write.remote(records)))

    async def follow(self, report: Callable[[str], None]) -> None:
        """Raises what keeps metrics from being written, a `ResourceError`; never returns.

        Args:
            report: is told when the process has failed.
        """
        while True:
            await self._settle(*await self._handed.get(), report)

    async def close(self) -> None:
        """Everything written can be read afterwards; of a process that has failed, what it wrote before."""
        try:
            while not self._handed.empty():
                await self._settle(*self._handed.get_nowait(), logger.warning)
            if self._own is None:
                await self._tracker.close.remote()
            else:
                self._own.close()
        except (RayError, UserError) as error:
            logger.warning("the tracker could not be closed: %s", error)

    async def _settle(
        self, records: Sequence[Record], written: Awaitable[None] | None, report: Callable[[str], None]
    ) -> None:
        try:
            if written is not None:
                await written
                return
        except RayError as error:
            self._take_over(error, report)
        assert self._own is not None
        self._own.write(records)

    def _take_over(self, error: RayError, report: Callable[[str], None]) -> None:
        """Called for the first record that was not written, and for those handed over meanwhile."""
        if isinstance(error, RayTaskError) and isinstance(error.cause, UserError):
            raise error.cause from error
        if self._own is None:
            logger.warning("the tracker failed: %s", error)
            self._own = JsonlTracker(self._metrics)
            report("The tracker failed: metrics go on in metrics.jsonl alone, without Aim (why: logs/tracker.log).")
