"""A policy and a critic small enough to check by hand: tables with one row for each last token.

Real scores and values, real gradients, plain gradient descent; for tests of the loop's logic.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from learner.backend import LossFunction, StepResult, TokenScores, TrainBackend, ValueLoss
from learner.packing import PackedSequences

VOCABULARY = 12


class Table:
    """Numbers that gradient descent moves, and which of its calls were made."""

    def __init__(self, numbers: Tensor, *, lr: float) -> None:
        self.table = numbers.requires_grad_()
        self.gradient = torch.zeros_like(numbers)
        """Of the last step."""
        self.calls: list[str] = []
        self._lr = lr

    def descend(self, losses: Sequence[Callable[[], Tensor]]) -> StepResult:
        self.calls.append("step")
        gradient, total = torch.zeros_like(self.table), 0.0
        for loss in losses:
            value = loss()
            gradient = gradient + torch.autograd.grad(value, self.table)[0]
            total += float(value.detach())
        self.gradient = gradient
        is_finite = math.isfinite(total) and bool(gradient.isfinite().all())
        if is_finite:
            with torch.no_grad():
                self.table -= self._lr * gradient
        return StepResult(loss=total, grad_norm=float(gradient.norm()), lr=self._lr, skipped=not is_finite)

    def save(self, folder: Path) -> None:
        self.calls.append("save")
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.table.detach(), folder / "table.pt")

    def load(self, folder: Path) -> None:
        with torch.no_grad():
            self.table.copy_(torch.load(folder / "table.pt"))

    def close(self) -> None:
        self.calls.append("close")


class BigramBackend(Table):
    """p(token | the token before it) = softmax(table[the token before it])."""

    def __init__(self, *, lr: float = 0.5, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(torch.randn(VOCABULARY, VOCABULARY, generator=generator), lr=lr)

    def score(
        self,
        sequences: PackedSequences,
        *,
        temperature: float,
        with_sum_pi_squared: bool = False,
        reference: TrainBackend | None = None,
    ) -> TokenScores:
        self.calls.append("score")
        with torch.no_grad():
            return self.forward(sequences, temperature, reference, with_sum_pi_squared)

    def forward(
        self,
        sequences: PackedSequences,
        temperature: float,
        reference: TrainBackend | None = None,
        with_sum_pi_squared: bool = False,
    ) -> TokenScores:
        log_p = torch.log_softmax(self.table[before(sequences)] / temperature, dim=1)
        logprobs = log_p.gather(1, sequences.token_ids[:, None])[:, 0]
        exact_kl = None
        if reference is not None:
            log_q = torch.log_softmax(reference.lazy_logits(sequences).chunk(slice(None)) / temperature, dim=1)
            exact_kl = after_first(sequences, (log_p.exp() * (log_p - log_q.roll(1, dims=0))).sum(1))
        return TokenScores(
            logprobs=after_first(sequences, logprobs),
            entropy=after_first(sequences, -(log_p.exp() * log_p).sum(1)),
            sum_pi_squared=after_first(sequences, log_p.exp().square().sum(1)) if with_sum_pi_squared else None,
            exact_kl=exact_kl,
        )

    def step(
        self,
        micro_batches: Sequence[PackedSequences],
        loss: LossFunction,
        *,
        temperature: float,
        reference: TrainBackend | None = None,
    ) -> StepResult:
        def loss_of(index: int, sequences: PackedSequences) -> Callable[[], Tensor]:
            return lambda: loss(self.forward(sequences, temperature, reference), index)

        return self.descend([loss_of(*pair) for pair in enumerate(micro_batches)])

    def lazy_logits(self, sequences: PackedSequences) -> "TableLogits":
        self.calls.append("lazy_logits")
        return TableLogits(self.table.detach()[sequences.token_ids])

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "table", self.table.detach()

    def export(self, folder: Path) -> None:
        self.calls.append("export")
        self.save(folder)


class TableLogits:
    """`LazyLogits` that are there."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def chunk(self, rows: slice) -> Tensor:
        return self._logits[rows]


class BigramCritic(Table):
    """V(state) = table[its last token]."""

    def __init__(self, *, lr: float = 0.5) -> None:
        super().__init__(torch.zeros(VOCABULARY), lr=lr)

    def values(self, sequences: PackedSequences) -> Tensor:
        self.calls.append("values")
        with torch.no_grad():
            return self.forward(sequences)

    def forward(self, sequences: PackedSequences) -> Tensor:
        return after_first(sequences, self.table[before(sequences)])

    def step(self, micro_batches: Sequence[PackedSequences], loss: ValueLoss) -> StepResult:
        def loss_of(index: int, sequences: PackedSequences) -> Callable[[], Tensor]:
            return lambda: loss(self.forward(sequences), index)

        return self.descend([loss_of(*pair) for pair in enumerate(micro_batches)])


def before(sequences: PackedSequences) -> Tensor:
    """[T]: the token before each."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), sequences.token_ids[:-1]])


def after_first(sequences: PackedSequences, values: Tensor) -> Tensor:
    """0 at each sequence's first token, which has none before it."""
    return torch.where(sequences.position_ids == 0, 0.0, values)
