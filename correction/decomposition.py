"""π_prox/μ in two factors: what staleness did, and what the engine's own numerics did.

    π_prox/μ = (π_prox/π_b) · (π_b/μ)

π_b is the behaviour policy by the learner's own numbers: the version that sampled, scored before it was replaced. So
the first factor is staleness alone, the second mismatch alone, and each can have a cap of its own: a large mismatch
is an error of the engine, a large staleness an old sample. Where π_b is not known, the product is weighed as one.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from correction.gap import GapRows, PolicyGap, summarize_gap
from correction.ratios import LEVELS, ratio
from correction.rows import TokenRows, stack_rows
from correction.weights import TokenWeights, Weighting


@dataclass(frozen=True, kw_only=True)
class BehaviourScores:
    """What the learner said of a batch under the versions that sampled it."""

    logprobs: Tensor
    """[N, T] log π_b; no data where it is not scored."""
    scored: Tensor
    """bool, [N, T], or [N] of whole sequences."""

    def __post_init__(self) -> None:
        assert self.scored.dtype == torch.bool, self.scored.dtype
        assert self.scored.shape in (self.logprobs.shape, self.logprobs.shape[:1]), self.scored.shape

    def of_rows(self, where: slice) -> "BehaviourScores":
        """Those of some sequences, with a truth value a token."""
        scored = self.scored[where]
        logprobs = self.logprobs[where]
        return BehaviourScores(
            logprobs=logprobs, scored=scored if scored.dim() == 2 else scored.unsqueeze(-1).expand_as(logprobs)
        )


@dataclass(frozen=True, kw_only=True)
class DecompositionReport:
    """The two factors, over the tokens whose π_b is known."""

    scored_share: float
    """Of the tokens in the mask."""
    staleness: PolicyGap
    """Of π_prox from π_b."""
    mismatch: PolicyGap
    """Of π_b from μ."""
    staleness_bounded_share: float
    """Scored tokens whose factor its bounds cut off or masked."""
    mismatch_bounded_share: float


class DecompositionRows(NamedTuple):
    """Sums over each sequence of a chunk, [n]."""

    num_tokens: Tensor
    """In the mask, scored or not."""
    num_staleness_bounded: Tensor
    num_mismatch_bounded: Tensor


class Apart(NamedTuple):
    """A chunk, weighed factor by factor where that can be done."""

    weighed: TokenWeights
    staleness: GapRows
    mismatch: GapRows
    counts: DecompositionRows


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """Each factor goes through the weighting by itself, with its own cap; the weight is their product."""

    level: str
    weighting: Weighting
    staleness_cap: float
    mismatch_cap: float

    def weigh(self, rows: TokenRows, behaviour: BehaviourScores, as_one: TokenWeights) -> Apart:
        """Weighs a chunk.

        Args:
            rows: π_prox over μ.
            behaviour: of the same sequences.
            as_one: what the weighting says of the product, for the tokens that are not scored.
        """
        scored = self._where_factors_are_known(rows.mask, behaviour.scored)
        staleness = TokenRows.of(rows.numerator, behaviour.logprobs, scored)
        mismatch = TokenRows.of(behaviour.logprobs, rows.denominator, scored)
        stale = self._weigh_factor(staleness, self.staleness_cap)
        mismatched = self._weigh_factor(mismatch, self.mismatch_cap)
        product = TokenWeights(weights=stale.weights * mismatched.weights, bounded=stale.bounded | mismatched.bounded)
        return Apart(
            weighed=TokenWeights(*(torch.where(scored, a, b) for a, b in zip(product, as_one, strict=True))),
            staleness=GapRows.of(staleness),
            mismatch=GapRows.of(mismatch),
            counts=DecompositionRows(
                num_tokens=rows.num_tokens,
                num_staleness_bounded=stale.bounded.sum(-1),
                num_mismatch_bounded=mismatched.bounded.sum(-1),
            ),
        )

    def _where_factors_are_known(self, mask: Tensor, scored: Tensor) -> Tensor:
        if self.level == "token":
            return mask & scored
        # A ratio that tokens share is known once all of them are scored.
        return mask & (scored | ~mask).all(-1, keepdim=True)

    def _weigh_factor(self, factor: TokenRows, cap: float) -> TokenWeights:
        shared = LEVELS[self.level](factor.log_differences, factor.mask)
        return self.weighting.with_cap(cap).weigh(ratio(shared) * factor.indicator, factor.mask)


def summarize_apart(chunks: Sequence[Apart]) -> DecompositionReport:
    """The report on all chunks of a batch."""
    counts = DecompositionRows(*stack_rows([chunk.counts for chunk in chunks]))
    staleness = GapRows(*stack_rows([chunk.staleness for chunk in chunks]))
    mismatch = GapRows(*stack_rows([chunk.mismatch for chunk in chunks]))
    num_scored = staleness.num_tokens.sum()
    return DecompositionReport(
        scored_share=float(num_scored / counts.num_tokens.sum().clamp(min=1)),
        staleness=summarize_gap(staleness),
        mismatch=summarize_gap(mismatch),
        staleness_bounded_share=float(counts.num_staleness_bounded.sum() / num_scored.clamp(min=1)),
        mismatch_bounded_share=float(counts.num_mismatch_bounded.sum() / num_scored.clamp(min=1)),
    )
