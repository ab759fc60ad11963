"""A policy and a critic small enough to check by hand: tables with one row for each last token.

Real scores and values, real gradients, plain gradient descent; for tests of the loop's logic.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from async_rl.checksums import Checksum
from async_rl.sizing.flops import ModelFlops
from learner.backend import LazyLogits, LossFunction, ScoringBackend, StepResult, TokenScores, ValueLoss
from learner.logit_statistics import FAR
from learner.mesh import Mesh, SingleRank
from learner.packing import PackedSequences
from learner.truncation import Truncation

VOCABULARY = 12
FLOPS = ModelFlops(per_token=100, per_scored_token=10, per_pair=1)


class TableSnapshot:
    """A table at one moment."""

    def __init__(self, table: Tensor) -> None:
        self._table = table

    def write(self, folder: Path) -> dict[str, Checksum]:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self._table, folder / "table.pt")
        return {"table.pt": Checksum.of(folder / "table.pt")}


class Table:
    """Numbers that gradient descent moves, by all ranks' losses, and which of its calls were made."""

    def __init__(self, numbers: Tensor, *, lr: float, mesh: Mesh | None = None) -> None:
        self.table = numbers.requires_grad_()
        self.gradient = torch.zeros_like(numbers)
        """Of the last step."""
        self.calls: list[str] = []
        self._lr = lr
        self._mesh = mesh or SingleRank()

    def descend(self, losses: Sequence[Callable[[], Tensor]]) -> StepResult:
        self.calls.append("step")
        gradient, sum_of_losses = torch.zeros_like(self.table), torch.zeros((), dtype=torch.float64)
        for loss in losses:
            value = loss()
            gradient = gradient + torch.autograd.grad(value, self.table)[0]
            sum_of_losses += value.detach()
        gradient, total = self._mesh.merge(gradient), float(self._mesh.merge(sum_of_losses))
        self.gradient = gradient
        is_finite = math.isfinite(total) and bool(gradient.isfinite().all())
        if is_finite:
            with torch.no_grad():
                self.table -= self._lr * gradient
        return StepResult(loss=total, grad_norm=float(gradient.norm()), lr=self._lr, skipped=not is_finite)

    def snapshot(self) -> "TableSnapshot":
        self.calls.append("snapshot")
        return TableSnapshot(self.table.detach().clone())

    def load(self, folder: Path) -> None:
        with torch.no_grad():
            self.table.copy_(torch.load(folder / "table.pt"))

    def close(self) -> None:
        self.calls.append("close")


class BigramBackend(Table):
    """p(token | the token before it) = softmax(table[the token before it])."""

    def __init__(self, *, lr: float = 0.5, seed: int = 0, mesh: Mesh | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(torch.randn(VOCABULARY, VOCABULARY, generator=generator), lr=lr, mesh=mesh)

    def score(
        self,
        micro_batches: Sequence[PackedSequences],
        *,
        temperature: float,
        truncation: Truncation | None = None,
        with_sum_pi_squared: bool = False,
        reference: ScoringBackend | None = None,
    ) -> list[TokenScores]:
        self.calls.append("score")
        theirs = logits_of(reference, micro_batches)
        with torch.no_grad():
            return [
                self.forward(m, temperature, truncation, logits, with_sum_pi_squared)
                for m, logits in zip(micro_batches, theirs, strict=True)
            ]

    def forward(
        self,
        sequences: PackedSequences,
        temperature: float,
        truncation: Truncation | None = None,
        reference: LazyLogits | None = None,
        with_sum_pi_squared: bool = False,
    ) -> TokenScores:
        logits, labels = self.table[before(sequences)], sequences.labels[:, None]
        dropped = torch.zeros(logits.shape, dtype=torch.bool)
        if truncation is not None:
            floors = truncation.floors(logits.detach(), temperature=temperature, gather=lambda mine: mine[None])
            dropped = (logits < floors[:, None]).scatter(1, labels, False)
        log_p = torch.log_softmax((logits / temperature).masked_fill(dropped, FAR), dim=1)
        exact_kl = None
        if reference is not None:
            theirs = reference.tile(slice(None), slice(None)) / temperature
            log_q = torch.log_softmax(theirs.masked_fill(dropped, FAR), dim=1)
            exact_kl = (log_p.exp() * (log_p - log_q)).sum(1)
        return TokenScores(
            logprobs=log_p.gather(1, labels)[:, 0],
            entropy=-(log_p.exp() * log_p).sum(1),
            sum_pi_squared=log_p.exp().square().sum(1) if with_sum_pi_squared else None,
            exact_kl=exact_kl,
        )

    def step(
        self,
        micro_batches: Sequence[PackedSequences],
        loss: LossFunction,
        *,
        temperature: float,
        truncation: Truncation | None = None,
        reference: ScoringBackend | None = None,
    ) -> StepResult:
        theirs = logits_of(reference, micro_batches)

        def loss_of(index: int, sequences: PackedSequences) -> Callable[[], Tensor]:
            return lambda: loss(self.forward(sequences, temperature, truncation, theirs[index]), index)

        return self.descend([loss_of(*pair) for pair in enumerate(micro_batches)])

    def lazy_logits(self, micro_batches: Sequence[PackedSequences]) -> "list[TableLogits]":
        self.calls.append("lazy_logits")
        return [TableLogits(self.table.detach()[before(m)]) for m in micro_batches]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "table", self.table.detach()

    def named_adapters(self) -> Iterator[tuple[str, Tensor]]:
        yield from ()

    def export(self, folder: Path) -> None:
        self.calls.append("export")
        TableSnapshot(self.table.detach()).write(folder)


class TableLogits:
    """`LazyLogits` that are there."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def tile(self, rows: slice, words: slice) -> Tensor:
        return self._logits[rows, words].clone()


class BigramCritic(Table):
    """V(state) = table[its last token]."""

    def __init__(self, *, lr: float = 0.5, mesh: Mesh | None = None) -> None:
        super().__init__(torch.zeros(VOCABULARY), lr=lr, mesh=mesh)

    def values(self, micro_batches: Sequence[PackedSequences]) -> list[Tensor]:
        self.calls.append("values")
        with torch.no_grad():
            return [self.forward(m) for m in micro_batches]

    def forward(self, sequences: PackedSequences) -> Tensor:
        return self.table[before(sequences)]

    def step(self, micro_batches: Sequence[PackedSequences], loss: ValueLoss) -> StepResult:
        def loss_of(index: int, sequences: PackedSequences) -> Callable[[], Tensor]:
            return lambda: loss(self.forward(sequences), index)

        return self.descend([loss_of(*pair) for pair in enumerate(micro_batches)])


def before(sequences: PackedSequences) -> Tensor:
    """[M]: the token before each that is scored."""
    return sequences.token_ids[sequences.sources]


def logits_of(
    reference: ScoringBackend | None, micro_batches: Sequence[PackedSequences]
) -> Sequence[LazyLogits | None]:
    """One a micro-batch."""
    return [None] * len(micro_batches) if reference is None else reference.lazy_logits(micro_batches)
