"""Calls the reward function beside generation, with a time limit, and says when it failed.

Plain functions run in processes of their own, which are ended when a call takes too long; async ones run on the event
loop. Owns the calls and their counts; knows nothing of groups, and never makes a number out of a failure.
"""

import asyncio
import multiprocessing
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import cast

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from async_rl.config.schema import RewardConfig
from async_rl.errors import AsyncRLError, RewardError
from async_rl.protocol import Prompt, RewardFailures
from async_rl.reward import Reward
from generators.lifeline import end_with
from generators.reward_function import RewardCall, is_async, load_reward_function, takes_tokens
from generators.reward_reader import RewardReader

Decode = Callable[[Sequence[int]], str]
"""Response token ids [R] → their text, without special tokens."""

DEADLY_PROMPTS = 4
"""Once calls for so many prompts in a row ended their process, the function is at fault, not a prompt."""


class RewardFailed(AsyncRLError):
    """One call gave no reward: it raised, took too long, returned what is no reward, or its process died."""

    def __init__(self, reason: str, cause: str) -> None:
        """`cause` is what many failures have in common: a line of the user's code, a time limit, an exit code."""
        super().__init__(reason, cause)
        self.reason = reason
        self.cause = cause

    def __str__(self) -> str:
        return self.reason


class RewardRunner:
    """Scores responses with the function that the config names.

    Raises a `RewardError` at once if that function cannot be used. `close` ends the processes.
    """

    def __init__(self, config: RewardConfig, reader: RewardReader, decode: Decode) -> None:
        self._config = config
        self._reader = reader
        self._decode = decode
        self._function = load_reward_function(config.function)
        self._takes_tokens = takes_tokens(self._function)
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
        self._failures: dict[str, RewardFailures] = {}
        self._deadly: set[str] = set()
        """Prompts whose calls ended their process since one last came back."""
        self.errors = 0
        """Calls that raised, returned what is no reward, or lost their process."""
        self.timeouts = 0
        """Calls that took longer than `reward.timeout_s`."""

    async def score(self, prompt: Prompt, token_ids: Sequence[int]) -> Reward:
        """The reward of a response [R]. Cancelling it ends the call.

        Raises:
            RewardFailed: this call gave none.
            RewardError: no call comes back: each ends its process.
        """
        call = RewardCall(
            prompt=prompt.text,
            response=self._decode(token_ids),
            answer=prompt.answer,
            metadata=dict(prompt.metadata),
            num_tokens=len(token_ids),
            tokens=[self._decode([token_id]) for token_id in token_ids] if self._takes_tokens else None,
        )
        try:
            return await (self._call_async(call) if self._pool is None else self._call_in_process(self._pool, call))
        except TimeoutError:
            self.timeouts += 1
            limit = f"longer than {self._config.timeout_s:g} s"
            failed = RewardFailed(f"the reward function took {limit}", limit)
            self._remember(failed)
            raise failed from None
        except RewardFailed as failed:
            self.errors += 1
            self._remember(failed)
            raise

    async def _call_in_process(self, pool: ProcessPool, call: RewardCall) -> Reward:
        future = pool.schedule(
            _call_plain, args=[self._config.function, self._reader, call], timeout=self._config.timeout_s
        )
        self._calls.add(future)
        try:
            outcome: Reward | RewardFailed = await asyncio.wrap_future(future)
        except ProcessExpired as death:
            raise self._lost(call.prompt, death.exitcode) from death
        finally:
            self._calls.discard(future)
        self._deadly.clear()
        if isinstance(outcome, RewardFailed):
            raise outcome
        return outcome

    def _lost(self, prompt: str, exit_code: int) -> RewardFailed | RewardError:
        """What a process's death comes to: one prompt's bad luck, or a function that cannot be used at all."""
        ending = f"exit code {exit_code}" + (f" ({signal.strsignal(-exit_code)})" if exit_code < 0 else "")
        self._deadly.add(prompt)
        if len(self._deadly) < DEADLY_PROMPTS:
            return RewardFailed(f"{self._config.function} ended its process with {ending}", ending)
        self.errors += 1
        return RewardError(
            f"{self._config.function} ended its process for {DEADLY_PROMPTS} prompts in a row, the last with {ending}",
            place="reward.function",
            remedy="call it by hand with such a prompt: it may raise, but must not exit, crash or use up the memory",
        )

    async def _call_async(self, call: RewardCall) -> Reward:
        async with self._turns, asyncio.timeout(self._config.timeout_s):
            try:
                value = await cast(Awaitable[object], call.make(self._function))
                return self._reader.read(value, num_tokens=call.num_tokens)
            except (Exception, SystemExit) as error:  # `sys.exit` in it must not end the generator
                raise _failure(error) from error

    def _remember(self, failed: RewardFailed) -> None:
        known = self._failures.get(failed.cause)
        count = 1 if known is None else known.count + 1
        self._failures[failed.cause] = RewardFailures(cause=failed.cause, reason=failed.reason, count=count)

    def take_failures(self) -> list[RewardFailures]:
        """What failed since this was last asked, by cause."""
        failures, self._failures = list(self._failures.values()), {}
        return failures

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


def _call_plain(spec: str, reader: RewardReader, call: RewardCall) -> Reward | RewardFailed:
    """The reward, or in words why there is none: the user's exceptions need not survive pickling."""
    try:
        return reader.read(call.make(load_reward_function(spec)), num_tokens=call.num_tokens)
    except (Exception, SystemExit) as error:  # pebble would raise `sys.exit` again in the generator
        return _failure(error)


def _failure(error: Exception | SystemExit) -> RewardFailed:
    if isinstance(error, RewardError):
        return RewardFailed(f"{error.problem}; {error.remedy}", "no reward")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return RewardFailed(f"{type(error).__name__}: {error} ({line})", f"{type(error).__name__} ({line})")
