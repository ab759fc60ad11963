"""Log-probabilities of trajectories under the version that sampled them, kept from their arrival to their batch.

Owns the store. Who scores, and when there is time for it, is not known here.

Legend: N trajectories of a batch, T response positions; R tokens of one response.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from async_rl.protocol import DeliveryKey
from correction.decomposition import BehaviourScores
from learner.batch import TrainingBatch


class Stored(NamedTuple):
    """A group's log-probabilities, and under which version."""

    version: int
    logprobs: list[Tensor]


class Arrivals:
    """What was scored on arrival and has not trained yet."""

    def __init__(self) -> None:
        self._stored: dict[DeliveryKey, Stored] = {}

    def __len__(self) -> int:
        """Groups in store."""
        return len(self._stored)

    def put(self, key: DeliveryKey, version: int, logprobs: Sequence[Tensor]) -> None:
        """Keeps a group's log-probabilities under `version`, one [R] for each of its trajectories, in order."""
        self._stored[key] = Stored(version, list(logprobs))

    def take(self, batch: TrainingBatch) -> BehaviourScores:
        """What is known of a batch, which leaves the store."""
        logprobs, scored = torch.zeros(batch.shape), torch.zeros(batch.shape, dtype=torch.bool)
        rows = {key: iter(stored.logprobs) for key, stored in self._stored.items()}
        for index, sequence in enumerate(batch.sequences):
            if sequence.key in rows:
                row = next(rows[sequence.key])
                logprobs[index, : len(row)] = row
                scored[index, : len(row)] = True
        for key in {s.key for s in batch.sequences}:
            self._stored.pop(key, None)
        return BehaviourScores(logprobs=logprobs, scored=scored)

    def forget_before(self, version: int) -> None:
        """Drops what an older version sampled: it was filtered, or is too old to train."""
        self._stored = {key: stored for key, stored in self._stored.items() if stored.version >= version}
