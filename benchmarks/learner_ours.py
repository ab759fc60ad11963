"""Our learner's side of its benchmarks.

Owns what a training step and a scoring pass are. Must not know who else takes part.
"""

from pathlib import Path
from typing import Self

import torch
from learner_batches import Packed, advantages

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig
from learner.backend import TokenScores
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground


class OurLearner:
    """A policy on one rank."""

    def __init__(self, folder: Path, optimizer: OptimizerConfig) -> None:
        self._ground = Ground(seed=0, num_threads=1)
        self._policy = MegatronBackend(self._ground, ModelConfig(path=str(folder)), optimizer, num_steps=1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._policy.close()
        self._ground.close()

    def score(self, batch: Packed) -> torch.Tensor:
        """Log-probabilities of all responses, in the order of the batch."""
        return batch.in_order([said.logprobs for said in self._policy.score(batch.micro_batches, temperature=1.0)])

    def step(self, batch: Packed) -> float:
        """One update on −Σ advantage·log p / M; returns that loss."""
        micro_batches = batch.micro_batches
        num_scored = sum(packed.num_scored_tokens for packed in micro_batches)

        def loss(scores: TokenScores, index: int) -> torch.Tensor:
            return -(advantages(micro_batches[index].labels) @ scores.logprobs) / num_scored

        return self._policy.step(micro_batches, loss, temperature=1.0).loss
