"""Leases: what a generator is asked to sample.

Owns a lease's words, and those of the prompt in it.
"""

from enum import StrEnum
from typing import Self

import msgspec

from async_rl.protocol.wire import Scalar, Wire


class Purpose(StrEnum):
    """What a lease is for: `train` is counted by the run's ledger, `evaluate` by the evaluation's own."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class Prompt(Wire, frozen=True, kw_only=True):
    """One row of the data set, tokenised."""

    prompt_id: int
    """Row number in the data set: the same row has the same id in every epoch."""
    text: str
    """The prompt as the model reads it (chat template applied)."""
    token_ids: list[int]
    """[P]"""
    answer: str
    """What the reward function compares with."""
    task: str = ""
    """Metrics are also reported by this name."""
    metadata: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """The row's other columns, handed to the reward function untouched."""


class Sampling(Wire, frozen=True, kw_only=True):
    """How an engine samples; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""

    def greedy(self) -> Self:
        """The likeliest token each time, up to the same length."""
        return type(self)(max_tokens=self.max_tokens, temperature=0.0)


class Lease(Wire, frozen=True, kw_only=True):
    """A group handed to a generator: what to sample, how often, and until when."""

    group_id: int
    attempt: int
    purpose: Purpose
    prompt: Prompt
    group_size: int
    sampling: Sampling
    timeout_s: float
    """The lease ends this long after the grant; the generator then stops working on it."""
    greedy_baseline: bool = False
    """Whether a greedy answer is sampled and rewarded beside the group (`TrajectoryGroup.baseline_reward`)."""

    @property
    def num_requests(self) -> int:
        """How many samples that is."""
        return self.group_size + self.greedy_baseline
