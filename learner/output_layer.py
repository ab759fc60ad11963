"""The output layer of a policy, or one rank's part of it, and the tiles in which its logits are made.

Owns the product of hidden states and a weight: in the weight's number format, and taken to float32 from there. Knows
nothing of what is made of logits.

Legend: M scored tokens, R of them in a tile, H hidden size; V words of this rank's part of the vocabulary, K of them
in a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.products import multiply
from learner.vocabulary import VocabularyShard

CPU_TILE = (512, 1024)
"""R and K: its caches hold the logits, and what makes them."""
GPU_TILE = (2048, 16384)
"""Few and large ones."""


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """A policy's output layer, or one rank's part of it."""

    weight: Tensor
    """[≥ V, H]: a row a word; rows behind V are padding and get no gradient."""
    vocabulary: VocabularyShard
    gradient: Tensor | None = None
    """[≥ V, H] float32, that the backward pass adds to instead of returning a gradient, so that many micro-batches add
    up in float32 and no second matrix of that size is needed. None: the gradient is autograd's."""

    def logits(self, hidden: Tensor, words: slice) -> Tensor:
        """[R, H] to logits [R, K] of some words of this part, float32 or wider, in memory of the caller's."""
        logits = multiply(hidden, self.weight[words])
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True, kw_only=True)
class HiddenLogits:
    """`LazyLogits` over the hidden states of a forward pass."""

    hidden: Tensor
    """[M, H]"""
    layer: OutputLayer

    @torch.no_grad()
    def tile(self, rows: slice, words: slice) -> Tensor:
        """Logits [R, K]."""
        return self.layer.logits(self.hidden[rows], words)


def tiles_of_rows(num_rows: int, num_words: int, device: torch.device) -> Iterator[slice]:
    """Of fewer words more rows."""
    most_rows, most_words = _tile(device)
    return _slices(num_rows, max(most_rows, most_rows * most_words // max(num_words, 1)))


def tiles_of_words(num_words: int, device: torch.device) -> Iterator[slice]:
    """Of all of them."""
    return _slices(num_words, _tile(device)[1])


def tiles_of_whole_rows(num_rows: int, num_words: int, device: torch.device) -> Iterator[slice]:
    """Of as many rows as stand in memory with all their words, where little else does."""
    most_rows, most_words = _tile(device)
    return _slices(num_rows, max(1, 4 * most_rows * most_words // num_words))


def _tile(device: torch.device) -> tuple[int, int]:
    return CPU_TILE if device.type == "cpu" else GPU_TILE


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
