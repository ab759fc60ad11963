"""The correction of a batch that another policy sampled: weights, and what does not train.

    π_prox, μ, mask ─► log-ratios ─► shared at a level ─► weights ─► normalised over the batch
                            └─► criteria and veto ─► the mask that trains

Owns the order and the one pass over the batch; each part stands in a module of its own. Weights never change
the mask, and rejection never the weights. Normalisers are of the batch that is given: give it whole.

Legend: N sequences, T tokens; n sequences of a chunk.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from correction.batch_memory import empty_batch
from correction.decomposition import BehaviourScores, Decomposition, FactorTables
from correction.diagnostics import Diagnostics
from correction.gap import GapRows, summarize_gap
from correction.masked import zero_outside
from correction.ratios import LEVELS, ROW_LEVELS, at_least_float32, log_difference, ratio, starts_segment
from correction.rejection import Criterion, Judge, Veto
from correction.rejection_report import (
    CriterionReport,
    Rejected,
    RejectionRows,
    sum_statistic,
    summarize_criterion,
    summarize_rejection,
)
from correction.rows import SequenceTable, TokenRows, token_chunks
from correction.weight_report import WeightReport, WeightRows, summarize_weights
from correction.weights import OFF, SMALLEST_MEAN, TokenWeights, Weighting


@dataclass(frozen=True, kw_only=True)
class Correction:
    """What is done about π_prox/μ. As it stands: nothing, and everything measured."""

    level: str = "token"
    """Whose ratio a token has; a key of `LEVELS`."""
    weighting: Weighting = OFF
    normalize: bool = False
    """Divide the weights by their mean over the batch: over tokens, turns or sequences, what the level has."""
    criteria: tuple[Criterion, ...] = ()
    """All have to hold; no two of one name."""
    veto: float = 0.0
    """A sequence with a token whose π_prox/μ is below this is rejected; 0 turns it off."""
    staleness_cap: float = 2.0
    """The weighting's cap for π_prox/π_b, where π_b is given."""
    mismatch_cap: float = 2.0
    """The same for π_b/μ."""

    def __post_init__(self) -> None:
        assert self.level in LEVELS and 0 <= self.veto <= 1, self
        names = [criterion.name for criterion in self.criteria]
        assert len(set(names)) == len(names), names


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """What became of a batch; tensors detached."""

    correction: Correction
    given: Tensor
    """[N, T] bool, the mask that went in."""
    mask: Tensor
    """[N, T] bool, what trains: the tokens that no criterion rejected."""
    weights: Tensor
    """[N, T] float32 or wider, 0 outside of `given`."""
    log_ratios: Tensor
    """[N, T] log π_prox/μ of each token by itself, clamped; 0 outside of `given`."""
    bounded: Tensor
    """[N, T] bool: the ratio is out of bounds, and the weight not the ratio: truncated, or 0 where the weighting
    drops."""
    diagnostics: Diagnostics


@torch.no_grad()
def correct(
    proximal_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    correction: Correction,
    *,
    behaviour: BehaviourScores | None = None,
) -> Corrected:
    """Weighs and rejects the tokens of a whole batch.

    Args:
        proximal_logprobs: [N, T] log π_prox, any floating type.
        rollout_logprobs: [N, T] log μ.
        mask: [N, T] bool. What stands outside of it is no data.
        correction: what is done.
        behaviour: π_b, where it is known: weights are then made factor by factor. Rejection judges the product.
    """
    assert proximal_logprobs.shape == rollout_logprobs.shape == mask.shape, (proximal_logprobs.shape, mask.shape)
    assert mask.dim() == 2 and mask.dtype == torch.bool, (mask.shape, mask.dtype)
    dtype = at_least_float32(proximal_logprobs[:0] - rollout_logprobs[:0]).dtype
    log_ratios, gaps = empty_batch(mask, dtype), SequenceTable(mask)
    weighing, rejecting = _Weighing(correction, mask, dtype), _Rejecting(correction, mask)
    for where in token_chunks(mask):
        rows = TokenRows.of(proximal_logprobs[where], rollout_logprobs[where], mask[where])
        log_ratios[where] = rows.log_ratios
        gaps.put(where, GapRows.of(rows))
        weighing.take(where, rows, behaviour)
        rejecting.take(where, rows)
    return Corrected(
        correction=correction,
        given=mask,
        mask=rejecting.mask,
        weights=weighing.weights,
        log_ratios=log_ratios,
        bounded=weighing.bounded,
        diagnostics=Diagnostics(
            gap=summarize_gap(GapRows(*gaps.columns)),
            weights=weighing.finish(),
            decomposition=weighing.factors.report() if behaviour is not None else None,
            criteria=rejecting.report_criteria(),
            vetoed=rejecting.report_veto(),
            rejected=rejecting.report_all(),
        ),
    )


@torch.no_grad()
def weigh_tokens(
    proximal_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, correction: Correction
) -> TokenWeights:
    """The weights alone of some rows, before normalisation, which needs the whole batch; arguments as in `correct`."""
    shared = LEVELS[correction.level](log_difference(proximal_logprobs, rollout_logprobs, mask), mask)
    return correction.weighting.weigh(zero_outside(ratio(shared), mask), mask)


class _Weighing:
    """The weights of a batch, chunk by chunk, and what is summed of them."""

    def __init__(self, correction: Correction, mask: Tensor, dtype: torch.dtype) -> None:
        self._correction = correction
        self._decomposition = Decomposition(
            level=correction.level,
            weighting=correction.weighting,
            staleness_cap=correction.staleness_cap,
            mismatch_cap=correction.mismatch_cap,
        )
        self.weights = empty_batch(mask, dtype)
        self.bounded = torch.empty_like(mask)
        self.factors = FactorTables(mask)
        self._sums, self._turns = SequenceTable(mask), SequenceTable(mask)

    def take(self, where: slice, rows: TokenRows, behaviour: BehaviourScores | None) -> None:
        """Weighs the rows at `where`."""
        weighting = self._correction.weighting
        ratios = ratio(LEVELS[self._correction.level](rows.log_differences, rows.mask)) * rows.indicator
        weighed = weighting.weigh(ratios, rows.mask)
        if behaviour is not None:
            weighed = self._decomposition.weigh(where, rows, behaviour, weighed, self.factors)
        self.weights[where], self.bounded[where] = weighed
        self._sums.put(where, WeightRows.of(rows, ratios, weighed, weighting.marks))
        if self._correction.level == "segment":
            starts = starts_segment(rows.mask)
            self._turns.put(where, ((weighed.weights * starts).sum(-1), starts.sum(-1)))

    def finish(self) -> WeightReport:
        """Normalises the weights, which only now are all there."""
        sums = WeightRows(*self._sums.columns)
        factor = self._mean(sums) if self._correction.normalize else 1.0
        if factor <= SMALLEST_MEAN:
            factor = 1.0
        if factor != 1:
            self.weights /= factor
        return summarize_weights(sums, self._correction.weighting, factor)

    def _mean(self, sums: WeightRows) -> float:
        if self._correction.level == "segment":
            total, num = self._turns.columns
        elif self._correction.level in ROW_LEVELS:
            num = (sums.num_tokens > 0).double()
            total = sums.weight * num
        else:
            total, num = sums.weight * sums.num_tokens, sums.num_tokens
        return float(total.sum() / num.sum().clamp(min=1))


class _Rejecting:
    """The mask that is left of a batch, chunk by chunk, and what is summed of what is not."""

    def __init__(self, correction: Correction, mask: Tensor) -> None:
        self._criteria = correction.criteria
        self._judges: list[Judge] = [*correction.criteria]
        if correction.veto > 0:
            self._judges.append(Veto(ratio=correction.veto))
        self.mask = torch.empty_like(mask)
        self._found = [SequenceTable(mask) for _ in self._criteria]
        self._kept = [SequenceTable(mask) for _ in self._judges]
        self._kept_by_all = SequenceTable(mask)

    def take(self, where: slice, rows: TokenRows) -> None:
        """Judges the rows at `where`."""
        kept_by_all = rows.mask
        for index, judge in enumerate(self._judges):
            statistic, keep = judge.judge(rows)
            # Spread over the tokens first: of truth values, that is four times faster than broadcasting.
            kept = rows.mask & keep.expand_as(rows.mask).contiguous()
            kept_by_all = kept_by_all & kept
            self._kept[index].put(where, RejectionRows.of(rows, kept))
            if index < len(self._criteria):
                self._found[index].put(where, sum_statistic(rows, self._criteria[index], statistic))
        self.mask[where] = kept_by_all
        self._kept_by_all.put(where, RejectionRows.of(rows, kept_by_all))

    def report_criteria(self) -> tuple[CriterionReport, ...]:
        """Of each criterion."""
        return tuple(
            summarize_criterion(criterion, found.columns, _summarize(kept))
            for criterion, found, kept in zip(self._criteria, self._found, self._kept, strict=False)
        )

    def report_veto(self) -> Rejected:
        """Of the veto alone; nothing where it is off."""
        return _summarize(self._kept[-1]) if len(self._judges) > len(self._criteria) else Rejected()

    def report_all(self) -> Rejected:
        """Of all together."""
        return _summarize(self._kept_by_all)


def _summarize(kept: SequenceTable) -> Rejected:
    return summarize_rejection(RejectionRows(*kept.columns))
