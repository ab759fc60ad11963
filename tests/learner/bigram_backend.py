"""A `TrainBackend` small enough to check by hand: a table of logits, one row for each last token.

Real scores, real gradients, plain gradient descent; for tests of the loop's logic.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from learner.backend import LossFunction, StepResult, TokenScores
from learner.packing import PackedSequences

VOCABULARY = 12


class BigramBackend:
    """p(token | the token before it) = softmax(table[the token before it])."""

    def __init__(self, *, lr: float = 0.5, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=generator).requires_grad_()
        self.gradient = torch.zeros(VOCABULARY, VOCABULARY)
        """Of the last step."""
        self.calls: list[str] = []
        self._lr = lr

    def score(self, sequences: PackedSequences, *, temperature: float) -> TokenScores:
        self.calls.append("score")
        with torch.no_grad():
            return self.forward(sequences, temperature)

    def forward(self, sequences: PackedSequences, temperature: float) -> TokenScores:
        last = torch.cat([torch.zeros(1, dtype=torch.int64), sequences.token_ids[:-1]])
        log_p = torch.log_softmax(self.table[last] / temperature, dim=1)
        is_first = sequences.position_ids == 0
        logprobs = log_p.gather(1, sequences.token_ids[:, None])[:, 0]
        entropy = -(log_p.exp() * log_p).sum(1)
        return TokenScores(logprobs=torch.where(is_first, 0.0, logprobs), entropy=torch.where(is_first, 0.0, entropy))

    def step(self, micro_batches: Sequence[PackedSequences], loss: LossFunction, *, temperature: float) -> StepResult:
        self.calls.append("step")
        gradient, total = torch.zeros_like(self.table), 0.0
        for index, sequences in enumerate(micro_batches):
            value = loss(self.forward(sequences, temperature), index)
            gradient = gradient + torch.autograd.grad(value, self.table)[0]
            total += float(value.detach())
        self.gradient = gradient
        is_finite = math.isfinite(total) and bool(gradient.isfinite().all())
        if is_finite:
            with torch.no_grad():
                self.table -= self._lr * gradient
        return StepResult(loss=total, grad_norm=float(gradient.norm()), lr=self._lr, skipped=not is_finite)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "table", self.table.detach()

    def save(self, folder: Path) -> None:
        self.calls.append("save")
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.table.detach(), folder / "table.pt")

    def load(self, folder: Path) -> None:
        with torch.no_grad():
            self.table.copy_(torch.load(folder / "table.pt"))

    def export(self, folder: Path) -> None:
        self.calls.append("export")
        self.save(folder)

    def close(self) -> None:
        self.calls.append("close")
