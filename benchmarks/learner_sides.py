"""Who takes part in the learner's benchmark, all behind the same two calls.

Owns the contestants' names. Must not know how they are measured.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from learner_batches import Batch, Packed
from learner_ours import OurLearner
from learner_peer import LAYOUTS, TransformersLearner, lay_out

from async_rl.config.learner import OptimizerConfig

# All steps do what steps do, and end where they began, so that what the sides say can be compared.
OPTIMIZER = OptimizerConfig(lr=1e-10)
SHARED, PLAIN = "shared", "plain"
OURS = (SHARED, PLAIN)
"""As it runs by default, and without sharing prompts."""
PEERS = tuple(LAYOUTS)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One way to train on one batch."""

    score: Callable[[], torch.Tensor]
    """Log-probabilities of all responses, in the order of the batch."""
    step: Callable[[], float]
    """Trains, and says the loss."""

    def call(self, pass_name: str) -> Callable[[], object]:
        """By its name, `score` or `step`."""
        return self.score if pass_name == "score" else self.step


def our_side(batch: Batch, ours: OurLearner, name: str) -> Side:
    """One of `OURS`."""
    packed = Packed.of(batch, shared=name == SHARED)
    return Side(score=lambda: ours.score(packed), step=lambda: ours.step(packed))


def peer_side(batch: Batch, peer: TransformersLearner, name: str) -> Side:
    """One of `PEERS`."""
    parts = lay_out(batch, name)
    return Side(score=lambda: peer.score(parts), step=lambda: peer.step(parts))
