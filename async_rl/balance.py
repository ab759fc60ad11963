"""What sequences cost, and shares of equal cost.

Owns the two, by the operations that a model takes: the controller deals a batch to the learner's shards by them, the
learner its sequences to micro-batches. Pure, and the same for the same numbers, so that ranks which do not ask each
other plan the same.

Legend: n costs, k shares.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from async_rl.sizing.flops import ModelFlops, causal_pairs

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

EVEN = 1.001
"""Shares whose largest is at most so many times what it has to be are left as they are."""


class GroupLengths(NamedTuple):
    """Some responses to one prompt, in tokens."""

    prompt: int
    responses: Sequence[int]


def group_cost(group: GroupLengths, flops: ModelFlops) -> int:
    """Operations of a forward pass over a prompt, once, and over responses that all attend to it and are scored.

    A backward pass takes twice as many of each kind, so that shares which are even here are even in training.
    """
    num_scored = sum(group.responses)
    pairs = causal_pairs(group.prompt) + sum(causal_pairs(length, group.prompt) for length in group.responses)
    return flops.forward(tokens=group.prompt + num_scored, scored_tokens=num_scored, pairs=pairs)


def cut_group(group: GroupLengths, flops: ModelFlops, num_parts: int) -> list[list[int]]:
    """Indices of the group's responses in so many parts of equal cost, none empty; fewer where responses are fewer."""
    num_parts = min(num_parts, len(group.responses))
    costs = [group_cost(GroupLengths(group.prompt, [length]), flops) for length in group.responses]
    return [part for part in share_out(costs, num_parts) if part]


def share_out(costs: Sequence[float], num_shares: int) -> list[list[int]]:
    """Indices of the costs in so many shares whose largest sum is small, some of which may be empty.

    Greedily first: the next largest goes where least is. Where that leaves shares uneven, by the largest differencing
    method too (N. Karmarkar, R. Karp, The Differencing Method of Set Partitioning, 1982), and the better of both.

    Args:
        costs: [n], positive.
        num_shares: k, at least one.
    """
    assert num_shares > 0, num_shares
    weights = np.asarray(costs, np.float64)
    places = _greedily(weights, num_shares)
    if imbalance(_sums(weights, places, num_shares)) > EVEN * _least(weights, num_shares):
        others = _by_differences(weights, num_shares)
        if _sums(weights, others, num_shares).max() < _sums(weights, places, num_shares).max():
            places = others
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    for index, place in enumerate(places.tolist()):
        shares[place].append(index)
    return shares


def imbalance(loads: npt.ArrayLike) -> float:
    """Largest over mean, 1 of nothing: how much longer all wait for the slowest than even shares would take."""
    loads = np.asarray(loads, np.float64)
    return float(loads.max() / loads.mean()) if loads.size and loads.any() else 1.0


def _least(costs: Float64Array, num_shares: int) -> float:
    """The imbalance that no shares go below: the largest cost has to be in one of them."""
    return max(1.0, float(costs.max() / costs.sum()) * num_shares) if len(costs) else 1.0


def _sums(costs: Float64Array, places: Int64Array, num_shares: int) -> Float64Array:
    return np.bincount(places, costs, num_shares).astype(np.float64)


def _greedily(costs: Float64Array, num_shares: int) -> Int64Array:
    """[n] the share of each."""
    places = np.zeros(len(costs), np.int64)
    loads = [(0.0, share) for share in range(num_shares)]
    for index in np.argsort(-costs, kind="stable").tolist():
        load, share = loads[0]
        places[index] = share
        heapq.heapreplace(loads, (load + float(costs[index]), share))
    return places


class _Merge(NamedTuple):
    """Two divisions into shares made one: the fullest share of the one with the emptiest of the other."""

    first: int
    second: int
    order: Int64Array
    """[k] which share of the first each of the merged ones comes from, and counted from behind of the second."""


def _by_differences(costs: Float64Array, num_shares: int) -> Int64Array:
    """[n] the share of each.

    Each cost begins as a division of its own, of which all shares but one are empty. The two whose shares differ most
    are merged, again and again; what matters of a division is only by how much its shares differ.
    """
    merges = list(_merge_all(costs, num_shares))
    slots: dict[int, Int64Array] = {len(costs) + len(merges) - 1: np.arange(num_shares)}
    for division in range(len(costs) + len(merges) - 1, len(costs) - 1, -1):
        merge, merged = merges[division - len(costs)], slots.pop(division)
        own = np.empty(num_shares, np.int64)
        own[merge.order] = merged
        slots[merge.first], slots[merge.second] = own, own[::-1]
    return np.array([slots[index][-1] for index in range(len(costs))], np.int64)


def _merge_all(costs: Float64Array, num_shares: int) -> Iterator[_Merge]:
    """Divisions are numbered: the costs', then one a merge."""
    loads: dict[int, Float64Array] = {}
    for index, cost in enumerate(costs):
        loads[index] = np.zeros(num_shares)
        loads[index][-1] = cost
    # By difference; then by number, so that the order is the same everywhere.
    waiting = [(-float(cost), index) for index, cost in enumerate(costs)]
    heapq.heapify(waiting)
    for number in range(len(costs), 2 * len(costs) - 1):
        (_, first), (_, second) = heapq.heappop(waiting), waiting[0]
        sums = loads.pop(first) + loads.pop(second)[::-1]
        order = np.argsort(sums, kind="stable")
        loads[number] = sums[order]
        heapq.heapreplace(waiting, (float(sums[order[0]] - sums[order[-1]]), number))
        yield _Merge(first, second, order)
