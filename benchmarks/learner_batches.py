"""Batches of random tokens for the learner's benchmark: groups of responses to one prompt, of given lengths.

Owns their shapes and how they are cut into our micro-batches. Must not know models.

Legend: M scored tokens of a micro-batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from learner.packing import Int64Array, PackedSequences, plan_micro_batches

VOCAB_SIZE = 1024
GROUP_SIZE = 8
MAX_TOKENS = 2048
"""Of our micro-batches: on a CPU as fast as the default of 8192, in less memory."""

Group = tuple[Int64Array, list[Int64Array]]
_Lengths = Callable[[np.random.Generator], int]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What all sides of a contest train on."""

    name: str
    groups: list[Group]

    @property
    def sequences(self) -> list[tuple[Int64Array, int]]:
        """Prompt and response together, and the response's length; group by group."""
        return [(np.concatenate([prompt, r]), len(r)) for prompt, responses in self.groups for r in responses]

    @property
    def num_tokens(self) -> int:
        """Of all sequences: a prompt counts once a response, whoever computes it once."""
        return sum(len(tokens) for tokens, _ in self.sequences)


def spreads() -> list[Batch]:
    """The quickstart's lengths, prompts of 11 to 16 tokens and responses of up to 8; lengths that are all alike; and
    lengths of which half are under 64, and few 512."""
    return [
        _draw("quickstart", 32, lambda rng: int(rng.integers(11, 17)), lambda rng: int(rng.integers(5, 9))),
        _draw("uniform", 8, lambda _: 64, lambda _: 64),
        _draw(
            "long-tailed",
            8,
            lambda rng: int(rng.integers(16, 129)),
            lambda rng: int(np.clip(np.exp(rng.normal(np.log(64), 1.1)), 1, 512)),
        ),
    ]


def ratios() -> list[Batch]:
    """Prompts as long as a response, four times as long, sixteen times."""
    lengths = {"1:1": (64, 64), "4:1": (128, 32), "16:1": (256, 16)}
    return [_of_ratio(name, prompt, response) for name, (prompt, response) in lengths.items()]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A batch as our learner takes it."""

    micro_batches: list[PackedSequences]
    order: list[int]
    """Which sequence of the batch each of theirs is."""

    @classmethod
    def of(cls, batch: Batch, *, shared: bool) -> Self:
        """Its micro-batches; groups whose prompt is shared stay whole."""
        if shared:
            lengths = [len(prompt) + sum(map(len, responses)) for prompt, responses in batch.groups]
            plan = plan_micro_batches(lengths, MAX_TOKENS)
            micro_batches = [PackedSequences.pack_groups([batch.groups[i] for i in part]) for part in plan]
            order = [i * GROUP_SIZE + member for part in plan for i in part for member in range(GROUP_SIZE)]
            return cls(micro_batches=micro_batches, order=order)
        sequences = batch.sequences
        plan = plan_micro_batches([len(tokens) for tokens, _ in sequences], MAX_TOKENS)
        micro_batches = [PackedSequences.pack(*zip(*(sequences[i] for i in part), strict=True)) for part in plan]
        return cls(micro_batches=micro_batches, order=[i for part in plan for i in part])

    def in_order(self, scores: list[torch.Tensor]) -> torch.Tensor:
        """[M] of each micro-batch, to all of them in the order of the batch."""
        parts = [part for packed, said in zip(self.micro_batches, scores, strict=True) for part in packed.unpack(said)]
        return torch.cat([part for _, part in sorted(zip(self.order, parts, strict=True), key=lambda pair: pair[0])])


def advantages(labels: torch.Tensor) -> torch.Tensor:
    """[M] any numbers, but the same for a token wherever it is packed."""
    return (labels % 7 - 3).float()


def _of_ratio(name: str, prompt: int, response: int) -> Batch:
    return _draw(name, 8, lambda _: prompt, lambda _: response)


def _draw(name: str, num_groups: int, prompt: _Lengths, response: _Lengths) -> Batch:
    rng = np.random.default_rng(0)

    def tokens(length: int) -> Int64Array:
        return rng.integers(0, VOCAB_SIZE, length)

    groups = [(tokens(prompt(rng)), [tokens(response(rng)) for _ in range(GROUP_SIZE)]) for _ in range(num_groups)]
    return Batch(name=name, groups=groups)
