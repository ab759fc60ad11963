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
MOST_EXCHANGES = 8
"""For each share."""


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
    method too (N. Karmarkar, R. Karp, The Differencing Method of Set Partitioning, 1982); of both, once the largest
    and the smallest share have exchanged what evens them, the better.

    Args:
        costs: [n], positive.
        num_shares: k, at least one.
    """
    assert num_shares > 0, num_shares
    weights = np.asarray(costs, np.float64)
    enough = EVEN * _least(weights, num_shares)
    places = _exchange(weights, _greedily(weights, num_shares), num_shares, enough)
    if _unevenness(weights, places, num_shares) > enough:
        others = _exchange(weights, _by_differences(weights, num_shares), num_shares, enough)
        if _unevenness(weights, others, num_shares) < _unevenness(weights, places, num_shares):
            places = others
    return _members(places, num_shares)


def imbalance(loads: npt.ArrayLike) -> float:
    """Largest over mean, 1 of nothing: how much longer all wait for the slowest than even shares would take."""
    loads = np.asarray(loads, np.float64)
    return float(loads.max() / loads.mean()) if loads.size and loads.any() else 1.0


def _least(costs: Float64Array, num_shares: int) -> float:
    """The imbalance that no shares go below: the largest cost has to be in one of them."""
    return max(1.0, float(costs.max() / costs.sum()) * num_shares) if len(costs) else 1.0


def _unevenness(costs: Float64Array, places: Int64Array, num_shares: int) -> float:
    return imbalance(np.bincount(places, costs, num_shares))


def _members(places: Int64Array, num_shares: int) -> list[list[int]]:
    """Indices by share."""
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    for index, place in enumerate(places.tolist()):
        shares[place].append(index)
    return shares


def _greedily(costs: Float64Array, num_shares: int) -> Int64Array:
    """[n] the share of each."""
    places = np.zeros(len(costs), np.int64)
    loads = [(0.0, share) for share in range(num_shares)]
    for index in np.argsort(-costs, kind="stable").tolist():
        load, share = loads[0]
        places[index] = share
        heapq.heapreplace(loads, (load + float(costs[index]), share))
    return places


def _exchange(costs: Float64Array, places: Int64Array, num_shares: int, enough: float) -> Int64Array:
    """[n] the share of each, after the largest and the smallest have exchanged costs, one for one or one for nothing,
    until they are even enough or no exchange helps."""
    shares, loads = _members(places, num_shares), np.bincount(places, costs, num_shares)
    for _ in range(MOST_EXCHANGES * num_shares):
        largest, smallest = int(loads.argmax()), int(loads.argmin())
        gap = float(loads[largest] - loads[smallest])
        if imbalance(loads) <= enough or not gap:
            break
        ours, theirs = shares[largest], shares[smallest]
        gains = costs[ours][:, None] - np.append(costs[theirs], 0.0)
        given, taken = divmod(int(np.abs(gains - gap / 2).argmin()), len(theirs) + 1)
        gain = float(gains[given, taken])
        if not 0 < gain < gap:
            break
        theirs.append(ours.pop(given))
        if taken < len(theirs) - 1:
            ours.append(theirs.pop(taken))
        loads[largest] -= gain
        loads[smallest] += gain
    exchanged = np.empty_like(places)
    for share, indices in enumerate(shares):
        exchanged[indices] = share
    return exchanged


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
