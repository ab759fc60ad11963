"""Calls the reward function beside generation, with a time limit, and says when it failed.

Plain functions run in processes of their own, which are ended when a call takes too long; async ones run on the event
loop. Owns the calls and their counts; knows nothing of groups, and never makes a number out of a failure.
"""

import asyncio
import multiprocessing
import os
import traceback
from collections.abc import Mapping
from contextlib import suppress

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from async_rl.config.schema import RewardConfig
from async_rl.errors import AsyncRLError, RewardError
from async_rl.protocol import Scalar
from generators.lifeline import end_with
from generators.reward_function import is_async, load_reward_function, to_reward


class RewardFailed(AsyncRLError):
    """One call gave no reward: it raised, took too long, returned no finite number, or its process died."""


class RewardRunner:
    """Scores responses with the function that the config names.

    Raises a `RewardError` at once if that function cannot be used. `close` ends the processes.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._function = load_reward_function(config.function)
        self._turns = asyncio.Semaphore(config.max_concurrent)
        self._pool: ProcessPool | None = None
        if not is_async(self._function):
            # Spawned, since this process has threads (an engine, sockets) that a fork would tear.
            self._pool = ProcessPool(
                max_workers=config.num_workers,
                initializer=_begin_worker,
                initargs=(config.function, os.getpid()),
                context=multiprocessing.get_context("spawn"),
            )
        self._calls: set[ProcessFuture] = set()
        self.errors = 0
        """Calls that raised, returned no finite number, or lost their process."""
        self.timeouts = 0
        """Calls that took longer than `reward.timeout_s`."""

    async def score(self, *, prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
        """The reward of one response. Raises `RewardFailed`; cancelling it ends the call."""
        arguments = (prompt, response, answer, dict(metadata))
        try:
            if self._pool is None:
                return await self._call_async(arguments)
            return await self._call_in_process(self._pool, arguments)
        except TimeoutError:
            self.timeouts += 1
            raise RewardFailed(f"the reward function took longer than {self._config.timeout_s:g} s") from None
        except RewardFailed:
            self.errors += 1
            raise

    async def _call_in_process(self, pool: ProcessPool, arguments: tuple[str, str, str, dict[str, Scalar]]) -> float:
        call = pool.schedule(_call_plain, args=[self._config.function, *arguments], timeout=self._config.timeout_s)
        self._calls.add(call)
        try:
            outcome: float | str = await asyncio.wrap_future(call)
        except ProcessExpired as error:
            raise RewardFailed(f"the process of the reward function died: {error}") from error
        finally:
            self._calls.discard(call)
        if isinstance(outcome, str):
            raise RewardFailed(outcome)
        return outcome

    async def _call_async(self, arguments: tuple[str, str, str, dict[str, Scalar]]) -> float:
        async with self._turns, asyncio.timeout(self._config.timeout_s):
            try:
                return to_reward(await self._function(*arguments))  # type: ignore[misc]  # async: it gives an awaitable
            except (Exception, SystemExit) as error:  # `sys.exit` in it must not end the generator
                raise RewardFailed(_describe(error)) from error

    def close(self) -> None:
        """Cancels the calls and ends the processes, whatever they are doing. May be called again."""
        for call in self._calls:
            # A stopped pool forgets its calls, and who awaits one would wait for ever.
            call.cancel()
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()


def _begin_worker(spec: str, parent_pid: int) -> None:
    end_with(parent_pid)
    # Loaded here, so that the import does not count as a call's time; the first call says again what is wrong.
    with suppress(RewardError):
        load_reward_function(spec)


def _call_plain(spec: str, prompt: str, response: str, answer: str, metadata: dict[str, Scalar]) -> float | str:
    """The reward, or in words why there is none: the user's exceptions need not survive pickling."""
    try:
        return to_reward(load_reward_function(spec)(prompt, response, answer, metadata))
    except (Exception, SystemExit) as error:  # pebble would raise `sys.exit` again in the generator
        return _describe(error)


def _describe(error: Exception | SystemExit) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(frame.filename)}:{frame.lineno})"
