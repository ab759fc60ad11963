"""Log-probabilities of tokens under the version that sampled them, kept from a group's arrival to its batch.

Owns the store. Who scores, and when there is time for it, is not known here.

Legend: N trajectories of a batch, T response positions; n of a group, t of its longest response.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from async_rl.protocol import DeliveryKey
from correction.decomposition import BehaviourScores
from learner.batch import TrainingBatch


class Stored(NamedTuple):
    """A group's log-probabilities, and under which version."""

    version: int
    logprobs: Tensor
    """[n, t]"""
    scored: Tensor
    """[n, t] bool: tokens that this version sampled; the others' log-probabilities are another policy's."""


class Arrivals:
    """What was scored on arrival and has not trained yet."""

    def __init__(self) -> None:
        self._stored: dict[DeliveryKey, Stored] = {}

    def __len__(self) -> int:
        """Groups in store."""
        return len(self._stored)

    def put(self, key: DeliveryKey, group: TrainingBatch, logprobs: Tensor) -> None:
        """Keeps what the policy of `group.version` says of a group, laid out as a batch of its own; [n, t]."""
        self._stored[key] = Stored(group.version, logprobs, group.sampled & (group.staleness == 0))

    def take(self, batch: TrainingBatch) -> BehaviourScores:
        """What is known of a batch, which leaves the store."""
        logprobs, scored = torch.zeros(batch.shape), torch.zeros(batch.shape, dtype=torch.bool)
        rows: dict[DeliveryKey, list[int]] = {}
        for row, sequence in enumerate(batch.sequences):
            rows.setdefault(sequence.key, []).append(row)
        for key, own in rows.items():
            stored = self._stored.pop(key, None)
            if stored is not None:
                width = stored.scored.shape[1]
                logprobs[own, :width], scored[own, :width] = stored.logprobs, stored.scored
        return BehaviourScores(logprobs=logprobs, scored=scored)

    def forget_before(self, version: int) -> None:
        """Drops what an older version sampled: it was filtered, or is too old to train."""
        self._stored = {key: stored for key, stored in self._stored.items() if stored.version >= version}
