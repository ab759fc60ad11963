"""A process that calls a plain reward function, one call after the other, until it dies.

Owns the process, the pipe to it, and how its death is seen: at once, by the kernel's word, with its exit code. Whoever
awaits a call may stop waiting; the process then ends, whatever it is doing.
"""

import asyncio
import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection

from async_rl.errors import AsyncRLError, RewardError
from async_rl.reward import Reward
from generators.lifeline import end_with
from generators.reward_call import RewardCall, RewardFailed
from generators.reward_function import load_reward_function
from generators.reward_reader import RewardReader

READY = "ready"

# Not forked, since the generator has threads (an engine, sockets) that a fork would tear.
_SPAWN = multiprocessing.get_context("spawn")


class ProcessEnded(AsyncRLError):
    """The process died during a call."""

    def __init__(self, exit_code: int) -> None:
        """Negative for a signal, as in `multiprocessing`."""
        super().__init__(exit_code)
        self.exit_code = exit_code


class RewardProcess:
    """One life of a process; it begins at once, and loads the function before the first call's time runs."""

    def __init__(self, function: str, reader: RewardReader) -> None:
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve, args=(theirs, os.getpid(), function, reader), name="reward", daemon=False
        )
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self._death = os.pidfd_open(self._process.pid)
        """Readable once it has died, unlike the pipe also where a child of its own still holds that open."""
        self._is_ready = False
        self._is_busy = False
        self._is_released = False

    @property
    def is_alive(self) -> bool:
        """Whether it can take a call."""
        return not self._is_released and self._process.is_alive()

    async def make(self, call: RewardCall, timeout_s: float) -> Reward | RewardFailed:
        """A call's result.

        Raises:
            TimeoutError: it took longer; the process is ended.
            ProcessEnded: the process ended itself.
        """
        self._is_busy = True
        try:
            if not self._is_ready:
                await self._receive()
                self._is_ready = True
            return await self._exchange(call, timeout_s)
        finally:
            self._is_busy = False
            if not self._process.is_alive():
                self._release()

    async def _exchange(self, call: RewardCall, timeout_s: float) -> Reward | RewardFailed:
        is_answered = False
        try:
            async with asyncio.timeout(timeout_s):
                with suppress(ConnectionError):  # the answer, too, will not come
                    self._connection.send(call)
                answer = await self._receive()
            is_answered = True
        finally:
            if not is_answered:
                self._kill()
        assert isinstance(answer, Reward | RewardFailed), answer
        return answer

    async def _receive(self) -> object:
        await _readable(self._connection.fileno(), self._death)
        try:
            message: object = self._connection.recv() if self._connection.poll() else None
        except (EOFError, ConnectionError):
            message = None
        if message is None:
            raise ProcessEnded(await self._exit_code())
        return message

    async def _exit_code(self) -> int:
        # The pipe closes a moment before the process is gone; one that has closed it by itself is not waited for.
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await _readable(self._death)
        self._kill()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def close(self) -> None:
        """Ends the process; a call in hand sees its death. May be called again."""
        self._kill()
        if not self._is_busy:
            self._release()

    def _kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._connection.close()
            os.close(self._death)


async def _readable(*descriptors: int) -> None:
    """Waits until one of them is."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for descriptor in descriptors:
        loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


def _serve(connection: Connection, parent_pid: int, function: str, reader: RewardReader) -> None:
    """The process's whole life."""
    end_with(parent_pid)
    # A Ctrl-C is for the command line, which ends everything in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Loaded here, so that the import does not count as a call's time; the first call says again what is wrong.
    with suppress(RewardError):
        load_reward_function(function)
    connection.send(READY)
    while True:
        connection.send(_answer(connection.recv(), function, reader))


def _answer(call: RewardCall, function: str, reader: RewardReader) -> Reward | RewardFailed:
    try:
        return reader.read(call.make(load_reward_function(function)), num_tokens=call.num_tokens)
    except (Exception, SystemExit) as error:  # `sys.exit` in it costs a reward, not the process
        return RewardFailed.by(error)
