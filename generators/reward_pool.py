"""Processes that share the calls of a plain reward function.

Owns who is free, and that another process takes the place of one that has ended.
"""

import asyncio
import signal

from async_rl.reward import Reward
from generators.reward_call import RewardCall, RewardFailed
from generators.reward_process import ProcessEnded, RewardProcess
from generators.reward_reader import RewardReader


class RewardPool:
    """`num_workers` processes, all begun at once."""

    def __init__(self, function: str, reader: RewardReader, *, num_workers: int) -> None:
        self._function = function
        self._reader = reader
        self._processes = {self._begin() for _ in range(num_workers)}
        self._free: asyncio.Queue[RewardProcess] = asyncio.Queue()
        for process in self._processes:
            self._free.put_nowait(process)
        self._is_closed = False

    async def make(self, call: RewardCall, timeout_s: float) -> Reward | RewardFailed:
        """A call's result, as soon as a process is free for it. Cancelling it ends the call.

        Raises:
            TimeoutError: it took longer, not counting the wait.
            ProcessEnded: the process ended itself.
        """
        process = self._living(await self._free.get())
        try:
            if self._is_closed:
                raise ProcessEnded(-signal.SIGKILL)
            return await process.make(call, timeout_s)
        finally:
            self._free.put_nowait(self._living(process))

    def close(self) -> None:
        """Ends the processes, whatever they are doing. May be called again."""
        self._is_closed = True
        for process in self._processes:
            process.close()

    def _begin(self) -> RewardProcess:
        return RewardProcess(self._function, self._reader)

    def _living(self, process: RewardProcess) -> RewardProcess:
        """The process, or one in its place."""
        if self._is_closed or process.is_alive:
            return process
        process.close()
        self._processes.remove(process)
        successor = self._begin()
        self._processes.add(successor)
        return successor
