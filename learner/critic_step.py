"""The critic's loss of one mini-batch, micro-batch by micro-batch.

Owns what a value backend calls during a step. Every trained token has the same say. Must not know optimizers.

Legend: N trajectories, T response positions; M scored tokens of a micro-batch.
"""

from dataclasses import dataclass, field

from torch import Tensor

from learner.losses.value import value_loss
from learner.mini_batch import MiniBatch
from learner.outcome import BatchScores, UpdateOutcome, ValuedTokens


@dataclass(frozen=True, kw_only=True)
class CriticStep:
    """A `ValueLoss` with what it needs to know of a mini-batch."""

    scores: BatchScores
    mini_batch: MiniBatch
    row_scales: Tensor
    """[N] float64: 1 over the trained tokens of the mini-batch."""
    clip: float
    outcome: UpdateOutcome
    said: dict[int, ValuedTokens] = field(default_factory=dict)

    def __call__(self, values: Tensor, index: int) -> Tensor:
        """The micro-batch's share of the loss, scalar with gradient."""
        m, scores = self.mini_batch.micro_batches[index], self.scores
        if not m.width:
            # Of nothing: 0, with gradients of 0.
            return values.sum()
        assert scores.models.values is not None and scores.advantages.returns is not None
        mask, old, returns = (
            m.pick(rows).to(values.device) for rows in (scores.mask, scores.models.values, scores.advantages.returns)
        )
        result = value_loss(
            m.rows_of(values), returns, old, mask, self.row_scales[m.indices].to(values.device), clip=self.clip
        )
        self.said[index] = ValuedTokens.of(m.pick(scores.mask), result)
        return result.loss

    def conclude(self) -> None:
        """Hands on what the loss said, in the order of the micro-batches: only now, since it had to come from the
        device."""
        self.outcome.values += [self.said[index].cpu() for index in sorted(self.said)]
