"""Which sequences of a mini-batch share a forward pass.

    a shard's groups ─► units that fit into the budget ─► micro-batches, as many on every shard, of even cost

Owns the plan, which every rank makes for all shards from what all know of a batch, so that nobody has to ask how many
micro-batches the others have. The budget is about memory and never about the result. Pure.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from async_rl.balance import GroupLengths, group_cost, imbalance
from async_rl.config.learner import LearnerConfig
from async_rl.sizing.flops import ModelFlops


class Sequences(NamedTuple):
    """Some responses to one prompt."""

    prompt: int
    """Tokens."""
    responses: dict[int, int]
    """Tokens by index of the sequence in the batch; at least one."""


@dataclass(frozen=True, kw_only=True)
class MicroBatchPlan:
    """For each shard its micro-batches, as many for all of them, the costliest first."""

    shards: list[list[list[int]]]
    """Indices of sequences; empty where a shard has too few."""
    costs: list[list[int]]
    """Operations of a forward pass, likewise."""

    @property
    def loads(self) -> list[int]:
        """Operations by shard."""
        return [sum(costs) for costs in self.costs]

    @property
    def imbalance(self) -> float:
        """Of the micro-batches of all shards: the largest over the mean."""
        return imbalance([cost for costs in self.costs for cost in costs])


@dataclass(frozen=True, kw_only=True)
class MicroBatchPlanner:
    """Plans under the limits of one run."""

    max_tokens: int
    """A sequence that is longer than the budget has a micro-batch of its own, since it cannot be split."""
    shares_prefixes: bool
    """A prompt is computed once for those of its responses that share a micro-batch."""
    multiple_of: int
    """The number of micro-batches is, as an interleaved pipeline wants it."""
    flops: ModelFlops

    @classmethod
    def of(cls, config: LearnerConfig, flops: ModelFlops) -> Self:
        """For a run with such a model."""
        parallel = config.parallel
        return cls(
            max_tokens=config.micro_batch_tokens,
            shares_prefixes=config.share_prefixes,
            multiple_of=parallel.pp if parallel.vpp > 1 else 1,
            flops=flops,
        )

    def plan(self, shards: Sequence[Sequence[Sequences]]) -> MicroBatchPlan:
        """The plan for a mini-batch, of which each shard has some groups or none."""
        units = [[unit for group in groups for unit in self._units(group)] for groups in shards]
        packed = [_fullest(own, self.max_tokens) for own in units]
        count = -(-max(1, *map(len, packed)) // self.multiple_of) * self.multiple_of
        bins = [
            _evenest(own, count, self.max_tokens) or found + [[]] * (count - len(found))
            for own, found in zip(units, packed, strict=True)
        ]
        ordered = [sorted(((_cost(own), own) for own in shard), key=lambda pair: -pair[0]) for shard in bins]
        return MicroBatchPlan(
            shards=[[sorted(i for unit in own for i in unit.indices) for _, own in shard] for shard in ordered],
            costs=[[cost for cost, _ in shard] for shard in ordered],
        )

    def _units(self, group: Sequences) -> list["_Unit"]:
        """The group whole if it fits, else in as few parts as will."""
        room = self.max_tokens - group.prompt
        singles = [_Unit([i], length, 0) for i, length in group.responses.items()]
        parts = _fullest(singles, room) if self.shares_prefixes and room > 0 else [[single] for single in singles]
        return [self._unit(group, [i for single in part for i in single.indices]) for part in parts]

    def _unit(self, group: Sequences, indices: list[int]) -> "_Unit":
        lengths = GroupLengths(group.prompt, [group.responses[i] for i in indices])
        return _Unit(indices, group.prompt + sum(lengths.responses), group_cost(lengths, self.flops))


class _Unit(NamedTuple):
    """Sequences that stay together."""

    indices: list[int]
    tokens: int
    cost: int


def _cost(units: Sequence[_Unit]) -> int:
    return sum(unit.cost for unit in units)


def _fullest(units: Sequence[_Unit], max_tokens: int) -> list[list[_Unit]]:
    """As few bins as the best-fit decreasing rule gives: at most 11/9 of the fewest that there are, and one."""
    bins: list[list[_Unit]] = []
    rooms: list[tuple[int, int]] = []
    """(tokens that still fit, bin), ascending."""
    for unit in sorted(units, key=lambda u: -u.tokens):
        at = bisect_left(rooms, (unit.tokens, 0))
        if at == len(rooms):
            bins.append([unit])
            room, place = max_tokens - unit.tokens, len(bins) - 1
        else:
            room, place = rooms.pop(at)
            room -= unit.tokens
            bins[place].append(unit)
        if room > 0:
            insort(rooms, (room, place))
    return bins


def _evenest(units: Sequence[_Unit], count: int, max_tokens: int) -> list[list[_Unit]] | None:
    """So many bins of even cost: the next costliest goes where least is and it has room. None where one found none."""
    bins: list[list[_Unit]] = [[] for _ in range(count)]
    rooms = [max_tokens] * count
    loads = [(0, place) for place in range(count)]
    for unit in sorted(units, key=lambda u: -u.cost):
        full: list[tuple[int, int]] = []
        while loads and bins[loads[0][1]] and rooms[loads[0][1]] < unit.tokens:
            full.append(heapq.heappop(loads))
        if not loads:
            return None
        load, place = loads[0]
        heapq.heapreplace(loads, (load + unit.cost, place))
        bins[place].append(unit)
        rooms[place] -= unit.tokens
        for entry in full:
            heapq.heappush(loads, entry)
    return bins
