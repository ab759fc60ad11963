"""The learner's opponent: transformers and torch in their best form for one thread of a CPU.

Owns how a batch is laid out for transformers and what a training step does. Must not know our learner.

Legend: N sequences of a micro-batch, L the longest's length, M scored tokens of a micro-batch.

Padded: sequences of like length in a rectangle, padded on the right, where causality alone keeps padding out; so there
is no mask. Packed: one row, in which transformers tells sequences apart by their positions. Either way the vocabulary's
matrix meets only the states that are scored, and the update is torch's fused AdamW.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from learner_batches import Batch, advantages
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from async_rl.config.learner import OptimizerConfig
from learner.packing import PackedSequences, plan_micro_batches

LAYOUTS = {"pad 1024": ("padded", 1024), "pad 4096": ("padded", 4096), "pack 256": ("packed", 256)}
"""Of which the fastest counts: layout, and cells of a micro-batch. Longer packed rows are slower: masks are squares."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A micro-batch."""

    token_ids: torch.Tensor
    """[N, L]"""
    position_ids: torch.Tensor | None
    sources: torch.Tensor
    """[M] whose state says what comes, in the flattened rectangle."""
    labels: torch.Tensor
    """[M]"""
    indices: list[int]
    """Which sequences."""
    num_scored: tuple[int, ...]
    """Of each of them."""


def lay_out(batch: Batch, name: str) -> list[Part]:
    """Micro-batches of one of the layouts; a sequence that is longer has its own."""
    layout, max_tokens = LAYOUTS[name]
    lengths = [len(tokens) for tokens, _ in batch.sequences]
    if layout == "packed":
        return [_packed(batch, indices) for indices in plan_micro_batches(lengths, max_tokens)]
    plan: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if plan[-1] and lengths[plan[-1][0]] * (len(plan[-1]) + 1) > max_tokens:
            plan.append([])
        plan[-1].append(index)
    return [_padded(batch, indices) for indices in plan]


def _packed(batch: Batch, indices: list[int]) -> Part:
    sequences = [batch.sequences[i] for i in indices]
    row = PackedSequences.pack([tokens for tokens, _ in sequences], [count for _, count in sequences])
    return Part(
        token_ids=row.token_ids[None],
        position_ids=row.position_ids[None],
        sources=row.sources,
        labels=row.labels,
        indices=indices,
        num_scored=row.num_scored,
    )


def _padded(batch: Batch, indices: list[int]) -> Part:
    sequences = [batch.sequences[i] for i in indices]
    width = len(sequences[0][0])
    token_ids = torch.zeros(len(sequences), width, dtype=torch.int64)
    scored = []
    for row, (tokens, count) in enumerate(sequences):
        token_ids[row, : len(tokens)] = torch.from_numpy(tokens)
        scored.append(torch.arange(len(tokens) - count, len(tokens)) + row * width)
    places = torch.cat(scored)
    return Part(
        token_ids=token_ids,
        position_ids=None,
        sources=places - 1,
        labels=token_ids.flatten()[places],
        indices=indices,
        num_scored=tuple(count for _, count in sequences),
    )


class TransformersLearner:
    """A model and its optimizer."""

    def __init__(self, folder: Path, optimizer: OptimizerConfig) -> None:
        disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
        self._parameters = list(self._model.parameters())
        self._clip_grad_norm = optimizer.clip_grad_norm
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    def score(self, parts: Sequence[Part]) -> torch.Tensor:
        """Log-probabilities of all responses, in the order of the batch."""
        found: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for part in parts:
                found.update(zip(part.indices, self._logprobs(part).split(part.num_scored), strict=True))
        return torch.cat([found[index] for index in sorted(found)])

    def step(self, parts: Sequence[Part]) -> float:
        """One update on −Σ advantage·log p / M; returns that loss."""
        num_scored = sum(len(part.labels) for part in parts)
        total = 0.0
        self._optimizer.zero_grad(set_to_none=True)
        for part in parts:
            loss = -(advantages(part.labels) @ self._logprobs(part)) / num_scored
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self._parameters, self._clip_grad_norm)
        self._optimizer.step()
        return total

    def _logprobs(self, part: Part) -> torch.Tensor:
        """[M]"""
        states = self._model.model(
            input_ids=part.token_ids, position_ids=part.position_ids, use_cache=False
        ).last_hidden_state
        logits = self._model.lm_head(states.flatten(0, 1)[part.sources])
        return -cross_entropy(logits, part.labels, reduction="none")
