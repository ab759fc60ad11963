"""Where a rank stands among the learner's ranks, and what ranks tell each other of rows.

Owns the Protocol. Trajectories do not travel here: each shard gets its own from the controller. What does are rows of
numbers on the CPU that decisions over a whole batch read, so that every rank decides the same.

Legend: N trajectories of a batch, T response positions.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

_Said = TypeVar("_Said")


class Mesh(Protocol):
    """One rank's view. All ranks call the methods at once and in the same order."""

    @property
    def shard(self) -> int:
        """Which part of each batch this rank trains; tensor, context and pipeline peers have the same."""
        ...

    @property
    def num_shards(self) -> int:
        """Data parallel size."""
        ...

    @property
    def is_speaker(self) -> bool:
        """Whether this rank speaks for all of them: commits, publishes, completes checkpoints."""
        ...

    def merge(self, rows: Tensor) -> Tensor:
        """Rows [N, …] on the CPU, of which each shard filled its own and left 0 elsewhere: the whole."""
        ...

    def collect(self, said: _Said | None) -> Sequence[_Said]:
        """What the last pipeline stage of each shard said, in the order of the shards; other ranks' is not read."""
        ...

    def anyone(self, said: bool) -> bool:
        """Whether any rank says so: all then do the same."""
        ...

    def hear(self, said: _Said | None, *, rank: int = 0) -> _Said | None:
        """What a rank says, the speaker if no other is named; what the rest say is not read."""
        ...

    def largest(self, number: float) -> float:
        """Of the numbers that all ranks say."""
        ...


class SingleRank:
    """A learner of one rank."""

    shard = 0
    num_shards = 1
    is_speaker = True

    def merge(self, rows: Tensor) -> Tensor:
        """See `Mesh`."""
        return rows

    def collect(self, said: _Said | None) -> Sequence[_Said]:
        """See `Mesh`."""
        assert said is not None
        return [said]

    def anyone(self, said: bool) -> bool:
        """See `Mesh`."""
        return said

    def largest(self, number: float) -> float:
        """See `Mesh`."""
        return number

    def hear(self, said: _Said | None, *, rank: int = 0) -> _Said | None:
        """See `Mesh`."""
        assert rank == 0, rank
        return said
