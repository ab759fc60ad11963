"""Implementations of one function beside each other: same inputs, same process, in turns.

Owns how time is taken and how results are compared. Must not know what the functions compute.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Outputs = Mapping[str, Tensor | float]
MIN_SAMPLE_S = 0.03
"""A shorter call is repeated within a sample, so that the clock's own noise does not count."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Both sides of a function on one batch."""

    name: str
    ours: Callable[[], Outputs]
    peer: Callable[[], Outputs]
    peer_place: Callable[[Tensor], Tensor] = torch.Tensor.detach
    """Brings a tensor of the peer's to the places of ours, for the comparison."""
    tolerance: float = 1e-4
    """|ours − peer| ≤ tolerance·(1 + |peer|) for every output of the peer."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a contest ended."""

    ours_s: float
    peer_s: float
    """Medians."""
    disagreement: str
    """The output that differs most, where one differs by more than the tolerance; else empty."""

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return self.peer_s / self.ours_s


def hold(contest: Contest, mask: Tensor, *, num_samples: int) -> Result:
    """Compares, then times both sides in turns."""
    disagreement = _disagreement(contest, mask)
    seconds = take_turns({"ours": contest.ours, "peer": contest.peer}, num_samples=num_samples)
    return Result(ours_s=seconds["ours"], peer_s=seconds["peer"], disagreement=disagreement)


def take_turns(calls: Mapping[str, Callable[[], object]], *, num_samples: int) -> dict[str, float]:
    """Median time of each call, in seconds of the processor: one sample of each after the other, to and fro."""
    watches = {name: _Stopwatch(call) for name, call in calls.items()}
    gc.collect()
    gc.disable()
    try:
        for index in range(num_samples):
            for watch in list(watches.values())[:: 1 if index % 2 else -1]:
                watch.sample()
    finally:
        gc.enable()
    return {name: statistics.median(watch.samples_s) for name, watch in watches.items()}


def _disagreement(contest: Contest, mask: Tensor) -> str:
    placed = {
        name: contest.peer_place(value) if isinstance(value, Tensor) and value.shape == mask.shape else value
        for name, value in contest.peer().items()
    }
    return compare(contest.ours(), placed, mask, contest.tolerance)


def compare(ours: Outputs, peer: Outputs, mask: Tensor, tolerance: float) -> str:
    """Names the output of the peer that ours misses by most; empty if none is missed. Tensors of the mask's shape
    are compared inside of it."""
    worst, words = tolerance, ""
    for name, want in peer.items():
        if name not in ours:
            return f"{name}: not of ours"
        got, expected = (_chosen(value, mask) for value in (ours[name], want))
        if got.shape != expected.shape:
            return f"{name}: {tuple(got.shape)} instead of {tuple(expected.shape)}"
        errors = (got - expected).abs() / (1 + expected.abs())
        error = float(torch.where(errors.isnan(), torch.inf, errors).max()) if errors.numel() else 0.0
        if error > worst:
            worst, words = error, f"{name}: {error:.2g} apart"
    return words


def _chosen(value: Tensor | float, mask: Tensor) -> Tensor:
    tensor = torch.as_tensor(value).detach().double()
    return tensor[mask] if tensor.shape == mask.shape else tensor


class _Stopwatch:
    """Times a call, as often as makes a sample long enough.

    In time of the processor, the system's work for us included: on one thread that is wall-clock on a free core, and
    who else uses the machine does not blur it.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._num_calls = 1
        while self._measure() * self._num_calls < MIN_SAMPLE_S:
            self._num_calls *= 2
        self.samples_s: list[float] = []

    def sample(self) -> None:
        """One more."""
        self.samples_s.append(self._measure())

    def _measure(self) -> float:
        began = time.process_time()
        for _ in range(self._num_calls):
            self._call()
        return (time.process_time() - began) / self._num_calls
