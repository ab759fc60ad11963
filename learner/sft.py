"""Supervised fine-tuning on prompt and answer pairs, with the backend that reinforcement learning uses.

    prompts ─► Pair (prompt, answer + end token) ─► micro-batches ─► −log p(answer), token mean ─► step

Owns pairs, their loss (on the answer only), validation and the written model. Whoever shows progress is behind
`SftObserver`.

Legend: L tokens of a pair, T tokens of a micro-batch.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from async_rl.config.schema import SftConfig
from async_rl.data.tokenizer import Tokenizer
from async_rl.errors import NonFiniteError
from async_rl.protocol import Prompt
from learner.backend import StepResult, TokenScores, TrainBackend
from learner.packing import PackedSequences, plan_micro_batches

TEMPERATURE = 1.0
MAX_SKIPPED = 5
MAX_VALIDATION_PAIRS = 256


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A prompt followed by its answer and the end token."""

    token_ids: list[int]
    """[L]"""
    num_prompt_tokens: int

    @property
    def mask(self) -> list[bool]:
        """[L]: the tokens that are learned."""
        return [index >= self.num_prompt_tokens for index in range(len(self.token_ids))]


class SftObserver(Protocol):
    """Whoever shows and keeps what happens."""

    def said(self, message: str) -> None:
        """Something that the user should read."""
        ...

    def stepped(self, step: int, result: StepResult, num_tokens: int) -> None: ...

    def validated(self, step: int, loss: float) -> None: ...


def make_pairs(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[Pair]:
    """Prompts with their answers and the end token behind them."""
    return [
        Pair(
            token_ids=[*prompt.token_ids, *tokenizer.encode(prompt.answer), tokenizer.end_token_id],
            num_prompt_tokens=len(prompt.token_ids),
        )
        for prompt in prompts
    ]


class SftTrainer:
    """Trains a backend on pairs."""

    def __init__(self, config: SftConfig, backend: TrainBackend, observer: SftObserver) -> None:
        self._config = config
        self._backend = backend
        self._observer = observer
        self._skipped_in_a_row = 0

    def train(self, pairs: Sequence[Pair], held_out: Sequence[Pair]) -> None:
        """`steps` optimizer steps, a validation now and then and at the end.

        Raises:
            NonFiniteError: one step after the other has a loss that is not finite.
        """
        order = epochs(len(pairs), self._config.seed, shuffle=self._config.data.shuffle)
        for step in range(1, self._config.steps + 1):
            chosen = [pairs[next(order)] for _ in range(self._config.batch_size)]
            result = self._step(chosen)
            self._count_skipped(result)
            self._observer.stepped(step, result, sum(len(p.token_ids) for p in chosen))
            if held_out and (step % self._config.validate_every == 0 or step == self._config.steps):
                self._observer.validated(step, self.validation_loss(held_out[:MAX_VALIDATION_PAIRS]))

    def validation_loss(self, pairs: Sequence[Pair]) -> float:
        """Mean of −log p over the answer tokens, nats."""
        total, count = 0.0, 0
        for packed, mask in self._pack(pairs):
            logprobs = self._backend.score(packed, temperature=TEMPERATURE).logprobs
            total -= float(logprobs[mask].double().sum())
            count += int(mask.sum())
        return total / count

    def _step(self, pairs: Sequence[Pair]) -> StepResult:
        micro_batches = self._pack(pairs)
        count = sum(int(mask.sum()) for _, mask in micro_batches)

        def loss(scores: TokenScores, index: int) -> Tensor:
            return -scores.logprobs[micro_batches[index][1]].double().sum() / count

        return self._backend.step([packed for packed, _ in micro_batches], loss, temperature=TEMPERATURE)

    def _pack(self, pairs: Sequence[Pair]) -> list[tuple[PackedSequences, Tensor]]:
        plan = plan_micro_batches([len(p.token_ids) for p in pairs], self._config.micro_batch_tokens)
        packed = [PackedSequences.pack([pairs[i].token_ids for i in part]) for part in plan]
        masks = [p.pack_values([pairs[i].mask for i in part], torch.bool) for p, part in zip(packed, plan, strict=True)]
        return list(zip(packed, masks, strict=True))

    def _count_skipped(self, result: StepResult) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if result.skipped else 0
        if self._skipped_in_a_row > MAX_SKIPPED:
            raise NonFiniteError(
                f"{self._skipped_in_a_row} steps in a row had a loss that is not finite: lower optimizer.lr"
            )


def epochs(size: int, seed: int, *, shuffle: bool) -> Iterator[int]:
    """Indices below `size` for ever: each once an epoch, in a new order each if they are shuffled."""
    for epoch in itertools.count():
        if not shuffle:
            yield from range(size)
            continue
        yield from np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(size).tolist()
