"""Ranks of a learner as threads of one process, for what is decided over a whole batch.

outcomes = run_threads(2, lambda mesh: …)
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

_Said = TypeVar("_Said")
_Result = TypeVar("_Result")

TIMEOUT_S = 30.0


class ThreadMesh:
    """A `Mesh` of data parallel ranks, each a thread."""

    def __init__(self, shard: int, table: list[Any], barrier: threading.Barrier) -> None:
        self._table = table
        self._barrier = barrier
        self.shard = shard
        self.num_shards = len(table)
        self.is_speaker = shard == 0

    def merge(self, rows: Tensor) -> Tensor:
        """See `Mesh`."""
        return torch.stack(self._exchange(rows.clone())).sum(0).to(rows.dtype)

    def collect(self, said: _Said | None) -> Sequence[_Said]:
        """See `Mesh`."""
        everyone = self._exchange(said)
        assert all(words is not None for words in everyone)
        return everyone

    def anyone(self, said: bool) -> bool:
        """See `Mesh`."""
        return any(self._exchange(said))

    def hear(self, said: _Said | None, *, rank: int = 0) -> _Said | None:
        """See `Mesh`."""
        heard: _Said | None = self._exchange(said)[rank]
        return heard

    def largest(self, number: float) -> float:
        """See `Mesh`."""
        largest: float = max(self._exchange(number))
        return largest

    def _exchange(self, said: Any) -> list[Any]:
        self._table[self.shard] = said
        self._barrier.wait(TIMEOUT_S)
        everyone = list(self._table)
        # Nobody says the next before all have heard this.
        self._barrier.wait(TIMEOUT_S)
        return everyone


def run_threads(num_ranks: int, function: Callable[[ThreadMesh], _Result]) -> list[_Result]:
    """What the function returned in each rank, in their order; the others of one that raises break off."""
    table: list[Any] = [None] * num_ranks
    barrier = threading.Barrier(num_ranks)

    def run(shard: int) -> _Result:
        try:
            return function(ThreadMesh(shard, table, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(run, shard) for shard in range(num_ranks)]
        errors = [error for f in futures if (error := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
