"""π_prox/μ in two factors: what staleness did, and what the engine's own numerics did.

    π_prox/μ = (π_prox/π_b) · (π_b/μ)

π_b is the behaviour policy by the learner's own numbers: the version that sampled, scored before it was replaced. So
the first factor is staleness alone, the second mismatch alone, and each can have a cap of its own: a large mismatch
is an error of the engine, a large staleness an old sample. Where π_b is not known, the product is weighed as one.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from correction.gap import GapRows, PolicyGap, summarize_gap
from correction.ratios import LEVELS, ratio
from correction.rows import SequenceTable, TokenRows
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


class FactorCounts(NamedTuple):
    """Of each sequence, [n] or [N]."""

    num_tokens: Tensor
    """In the mask, scored or not."""
    num_staleness_bounded: Tensor
    num_mismatch_bounded: Tensor


class FactorTables:
    """What is summed of both factors."""

    def __init__(self, mask: Tensor) -> None:
        self.counts, self.staleness, self.mismatch = (SequenceTable(mask) for _ in range(3))

    def report(self) -> DecompositionReport:
        """Over all sequences."""
        counts = FactorCounts(*self.counts.columns)
        staleness, mismatch = GapRows(*self.staleness.columns), GapRows(*self.mismatch.columns)
        num_scored = staleness.num_tokens.sum()
        return DecompositionReport(
            scored_share=float(num_scored / counts.num_tokens.sum().clamp(min=1)),
            staleness=summarize_gap(staleness),
            mismatch=summarize_gap(mismatch),
            staleness_bounded_share=float(counts.num_staleness_bounded.sum() / num_scored.clamp(min=1)),
            mismatch_bounded_share=float(counts.num_mismatch_bounded.sum() / num_scored.clamp(min=1)),
        )


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """Each factor goes through the weighting by itself, with its own cap; the weight is their product."""

    level: str
    weighting: Weighting
    staleness_cap: float
    mismatch_cap: float

    def weigh(
        self, where: slice, rows: TokenRows, behaviour: BehaviourScores, as_one: TokenWeights, tables: FactorTables
    ) -> TokenWeights:
        """Weighs a chunk, and puts down what its factors are.

        Args:
            where: the chunk's rows in the batch.
            rows: π_prox over μ, of the chunk.
            behaviour: of the batch.
            as_one: what the weighting says of the chunk's products, for the tokens that are not scored.
            tables: of the batch.
        """
        behaviour = behaviour.of_rows(where)
        scored = self._where_factors_are_known(rows.mask, behaviour.scored)
        staleness = TokenRows.of(rows.numerator, behaviour.logprobs, scored)
        mismatch = TokenRows.of(behaviour.logprobs, rows.denominator, scored)
        stale = self._weigh_factor(staleness, self.staleness_cap)
        mismatched = self._weigh_factor(mismatch, self.mismatch_cap)
        product = TokenWeights(weights=stale.weights * mismatched.weights, bounded=stale.bounded | mismatched.bounded)
        tables.staleness.put(where, GapRows.of(staleness))
        tables.mismatch.put(where, GapRows.of(mismatch))
        counts = FactorCounts(rows.num_tokens, stale.bounded.sum(-1), mismatched.bounded.sum(-1))
        tables.counts.put(where, counts)
        return TokenWeights(*(torch.where(scored, a, b) for a, b in zip(product, as_one, strict=True)))

    def _where_factors_are_known(self, mask: Tensor, scored: Tensor) -> Tensor:
        if self.level == "token":
            return mask & scored
        # A ratio that tokens share is known once all of them are scored.
        return mask & (scored | ~mask).all(-1, keepdim=True)

    def _weigh_factor(self, factor: TokenRows, cap: float) -> TokenWeights:
        shared = LEVELS[self.level](factor.log_differences, factor.mask)
        return self.weighting.with_cap(cap).weigh(ratio(shared) * factor.indicator, factor.mask)
