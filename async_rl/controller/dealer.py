"""Who trains what: a batch's trajectories, dealt to the learner's shards.

    a group whole ────────────────► its prompt is computed once, by one shard
    a group in parts ─────────────► shards are more even, and each of them computes the prompt

The slowest shard decides how long a step takes, so of the ways to cut that one is taken whose largest shard costs
least. Each mini-batch is a step, and dealt by itself. Owns that choice. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from async_rl.balance import EVEN, GroupLengths, cut_group, group_cost, imbalance, share_out
from async_rl.config.ranks import num_shards
from async_rl.config.schema import RunConfig
from async_rl.protocol import TrajectoryGroup
from async_rl.sizing.flops import ModelFlops


class _Part(NamedTuple):
    """Some responses of a group, which one shard trains."""

    group: int
    responses: list[int]
    cost: float


class _Deal(NamedTuple):
    parts: list[_Part]
    hands: list[list[int]]
    """Indices of parts, shard by shard."""

    @property
    def loads(self) -> list[float]:
        """Cost by shard."""
        return [sum(self.parts[i].cost for i in hand) for hand in self.hands]


@dataclass(frozen=True, kw_only=True)
class Dealer:
    """Deals batches of one run."""

    num_shards: int
    mini_batches: int
    shares_prefixes: bool
    flops: ModelFlops

    @classmethod
    def of(cls, config: RunConfig, flops: ModelFlops) -> Self:
        """Of a run with such a model."""
        return cls(
            num_shards=num_shards(config),
            mini_batches=config.learner.mini_batches,
            shares_prefixes=config.learner.share_prefixes,
            flops=flops,
        )

    def deal(self, groups: Sequence[TrajectoryGroup]) -> list[list[int]]:
        """Who trains each trajectory of each group."""
        shards = [[0] * len(group.trajectories) for group in groups]
        if self.num_shards == 1:
            return shards
        lengths = [GroupLengths(len(g.prompt_token_ids), [t.num_tokens for t in g.trajectories]) for g in groups]
        assert len(groups) % self.mini_batches == 0, (len(groups), self.mini_batches)
        per_step = len(groups) // self.mini_batches
        for first in range(0, len(groups), per_step):
            deal = self._deal(lengths[first : first + per_step])
            for shard, hand in enumerate(deal.hands):
                for part in (deal.parts[i] for i in hand):
                    for response in part.responses:
                        shards[first + part.group][response] = shard
        return shards

    def _deal(self, groups: Sequence[GroupLengths]) -> _Deal:
        """The best of all ways to cut; the first of equals, which cuts least."""
        best: _Deal | None = None
        for parts in self._cuts(groups):
            deal = _Deal(parts, share_out([part.cost for part in parts], self.num_shards))
            if best is None or max(deal.loads) < max(best.loads):
                best = deal
            if imbalance(deal.loads) <= EVEN:
                break
        assert best is not None
        return best

    def _cuts(self, groups: Sequence[GroupLengths]) -> Iterator[list[_Part]]:
        """Ways to cut groups, from not at all to every response for itself: those that cost more than a limit into
        parts that cost about as much, for limits that halve. Where prompts are not shared, cutting costs nothing."""
        sizes = [len(group.responses) for group in groups]
        costs = [group_cost(group, self.flops) for group in groups]
        limit = sum(costs) / self.num_shards
        counts = [1] * len(groups) if self.shares_prefixes else sizes
        while True:
            yield [part for i, group in enumerate(groups) for part in self._cut(i, group, counts[i])]
            before = counts
            while counts == before:
                if counts == sizes:
                    return
                counts = [min(n, math.ceil(cost / limit)) for n, cost in zip(sizes, costs, strict=True)]
                limit /= 2

    def _cut(self, index: int, group: GroupLengths, count: int) -> Iterator[_Part]:
        for responses in cut_group(group, self.flops, count):
            lengths = GroupLengths(group.prompt, [group.responses[i] for i in responses])
            yield _Part(index, responses, group_cost(lengths, self.flops))
