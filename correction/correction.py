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

from correction.diagnostics import Diagnostics
from correction.gap import GapRows, summarize_gap
from correction.ratios import LEVELS, ROW_LEVELS, at_least_float32, ratio, starts_segment
from correction.rejection import Criterion, Judge, Veto
from correction.rejection_report import (
    CriterionRows,
    Rejected,
    RejectionRows,
    summarize_criterion,
    summarize_rejection,
)
from correction.row_chunks import row_chunks
from correction.rows import TokenRows, stack_rows
from correction.weight_report import WeightRows, summarize_weights
from correction.weights import OFF, Weighting, normalizer


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
    truncated: Tensor
    """[N, T] bool: a bound stands in the place of the ratio."""
    masked: Tensor
    """[N, T] bool: in the mask, and of weight 0 because the ratio is out of bounds."""
    rejected_by: dict[str, Tensor]
    """[N, T] bool by the name of a criterion (or `veto`): its tokens, of `given`."""
    diagnostics: Diagnostics


@torch.no_grad()
def correct(proximal_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, correction: Correction) -> Corrected:
    """Weighs and rejects the tokens of a whole batch.

    Args:
        proximal_logprobs: [N, T] log π_prox, any floating type.
        rollout_logprobs: [N, T] log μ.
        mask: [N, T] bool. What stands outside of it is no data.
    """
    assert proximal_logprobs.shape == rollout_logprobs.shape == mask.shape, (proximal_logprobs.shape, mask.shape)
    assert mask.dim() == 2 and mask.dtype == torch.bool, (mask.shape, mask.dtype)
    work = _Pass(correction, mask, at_least_float32(proximal_logprobs[:0] - rollout_logprobs[:0]).dtype)
    for rows in row_chunks(mask):
        work.take(rows, TokenRows.of(proximal_logprobs[rows], rollout_logprobs[rows], mask[rows]))
    return work.finish()


class _Pass:
    """One pass over a batch: what is made of each chunk, and what is summed of it."""

    def __init__(self, correction: Correction, mask: Tensor, dtype: torch.dtype) -> None:
        self._correction = correction
        self._judges: list[Judge] = [*correction.criteria]
        if correction.veto > 0:
            self._judges.append(Veto(ratio=correction.veto))
        self._given = mask
        self._mask = torch.empty_like(mask)
        self._weights = torch.empty_like(mask, dtype=dtype)
        self._log_ratios = torch.empty_like(self._weights)
        self._truncated, self._masked = torch.empty_like(mask), torch.empty_like(mask)
        self._rejected_by = [torch.empty_like(mask) for _ in self._judges]
        self._gap: list[GapRows] = []
        self._weight: list[WeightRows] = []
        self._criterion: list[list[CriterionRows]] = [[] for _ in correction.criteria]
        self._rejection: list[list[RejectionRows]] = [[] for _ in (*self._judges, None)]
        self._segment_means: list[tuple[Tensor, Tensor]] = []

    def take(self, where: slice, rows: TokenRows) -> None:
        """Does the rows at `where`."""
        self._log_ratios[where] = rows.log_ratios
        self._gap.append(GapRows.of(rows))
        self._weigh(where, rows)
        self._reject(where, rows)

    def _weigh(self, where: slice, rows: TokenRows) -> None:
        weighting = self._correction.weighting
        ratios = ratio(LEVELS[self._correction.level](rows.log_differences, rows.mask))
        weighed = weighting.weigh(ratios, rows.mask)
        self._weights[where], self._truncated[where], self._masked[where] = weighed
        self._weight.append(WeightRows.of(rows, ratios, weighed, weighting.marks))
        if self._correction.level == "segment":
            starts = starts_segment(rows.mask)
            self._segment_means.append(((weighed.weights * starts).sum(-1), starts.sum(-1)))

    def _reject(self, where: slice, rows: TokenRows) -> None:
        keep = rows.mask
        for index, judge in enumerate(self._judges):
            judgement = judge.judge(rows)
            rejected = rows.mask & ~judgement.keep
            keep = keep & judgement.keep
            self._rejected_by[index][where] = rejected
            self._rejection[index].append(RejectionRows.of(rows, rejected))
            if isinstance(judge, Criterion):
                self._criterion[index].append(CriterionRows.of(rows, judge, judgement.statistic))
        self._mask[where] = keep
        self._rejection[-1].append(RejectionRows.of(rows, rows.mask & ~keep))

    def finish(self) -> Corrected:
        """Normalises and sums up."""
        weight_rows = WeightRows(*stack_rows(self._weight))
        factor = self._normalizer(weight_rows)
        if factor != 1:
            self._weights /= factor
        rejections = [summarize_rejection(RejectionRows(*stack_rows(chunks))) for chunks in self._rejection]
        criteria = self._correction.criteria
        return Corrected(
            correction=self._correction,
            given=self._given,
            mask=self._mask,
            weights=self._weights,
            log_ratios=self._log_ratios,
            truncated=self._truncated,
            masked=self._masked,
            rejected_by={judge.name: by for judge, by in zip(self._judges, self._rejected_by, strict=True)},
            diagnostics=Diagnostics(
                gap=summarize_gap(GapRows(*stack_rows(self._gap))),
                weights=summarize_weights(weight_rows, self._correction.weighting.marks, factor),
                criteria=tuple(
                    summarize_criterion(criterion, CriterionRows(*stack_rows(chunks)), rejected)
                    for criterion, chunks, rejected in zip(criteria, self._criterion, rejections, strict=False)
                ),
                vetoed=rejections[len(criteria)] if self._correction.veto > 0 else Rejected(),
                rejected=rejections[-1],
            ),
        )

    def _normalizer(self, rows: WeightRows) -> float:
        if not self._correction.normalize:
            return 1.0
        if self._correction.level == "segment":
            total, num = stack_rows(self._segment_means)
        elif self._correction.level in ROW_LEVELS:
            is_counted = rows.num_tokens > 0
            total, num = (1 + rows.deviation / rows.num_tokens.clamp(min=1)) * is_counted, is_counted
        else:
            total, num = rows.num_tokens + rows.deviation, rows.num_tokens
        return normalizer(float(total.sum() / num.sum().clamp(min=1)))
