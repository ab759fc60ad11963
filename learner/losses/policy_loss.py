"""The one policy loss, assembled from parts: surrogate × importance weight, entropy bonus, reference KL.

    loss = Σ_i scale_i Σ_t (w_it · surrogate_it − entropy_coef · H_it + kl_coef · kl_it)

over the tokens that train. The row scales come from an aggregation over the whole mini-batch, so that micro-batch
losses just add up and no split of a mini-batch changes loss or gradient. Owns this sum. Pure: sees the tensors of one
micro-batch, never a model or a batch. The parts are small functions in tables: `table`, `aggregation`, `kl`.

Legend: N sequences (one a row), T response positions; n rows of a chunk. Outside of the mask stands no data: it may
be NaN, and reaches neither result nor gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from async_rl.config.objective import KLConfig, KLEstimator, LossConfig
from correction.masked import zero_outside
from correction.ratios import at_least_float32, log_difference
from learner.losses.by_rows import RowsLoss, loss_by_rows
from learner.losses.kl import KL_ESTIMATORS, straight_through
from learner.losses.surrogate import SurrogateInputs
from learner.losses.table import SURROGATES

POOLED_WEIGHT_EPS = 1e-10
"""Added to a weight before its logarithm."""


@dataclass(frozen=True, kw_only=True)
class PolicyTokens:
    """Everything of a micro-batch but the policy's own scores; no gradient."""

    mask: Tensor
    """[N, T] bool: tokens that train."""
    row_scales: Tensor
    """[N] float64: what one unit of a token's loss adds to the loss (`AGGREGATIONS`)."""
    advantages: Tensor
    """[N, T]"""
    weights: Tensor | None
    """[N, T] importance weights π_prox/μ; None: 1 each."""
    proximal_logprobs: Tensor
    """[N, T] log π_prox."""
    reference_logprobs: Tensor | None = None
    """[N, T]; None without a reference KL, and where it is exact."""
    selected: Tensor | None = None
    """[N, T] bool: what the surrogate's `select` chose; None of a surrogate without."""

    def __post_init__(self) -> None:
        assert self.mask.dtype == torch.bool and self.mask.ndim == 2, (self.mask.dtype, self.mask.shape)
        assert self.row_scales.shape == self.mask.shape[:1], (self.row_scales.shape, self.mask.shape)
        others = (self.advantages, self.weights, self.proximal_logprobs, self.reference_logprobs, self.selected)
        shapes = [None if x is None else x.shape for x in others]
        assert all(shape in (None, self.mask.shape) for shape in shapes), (self.mask.shape, shapes)


class TokenReport(NamedTuple):
    """What the surrogate has to say of each token: [N, T], detached."""

    ratios: Tensor
    """π/π_prox, 1 outside of the mask."""
    clipped_low: Tensor
    """bool, False outside of the mask; as `Surrogate` has it."""
    clipped_high: Tensor
    clipped_dual: Tensor


class PolicyLoss(NamedTuple):
    """The loss of one micro-batch, and what there is to say of its tokens (detached)."""

    loss: Tensor
    """Scalar float64 with gradient."""
    surrogate: TokenReport
    log_ratio_sums: Tensor
    """[N] Σ_t log π/π_prox; minus all of them over the number of tokens estimates KL(π_prox‖π), by k1."""
    entropy: Tensor
    """[N, T] as it was given, no data outside of the mask; 0 if it was not."""
    reference_kl: Tensor
    """[N, T], no data outside of the mask; 0 without a reference."""


def policy_loss(
    logprobs: Tensor,
    entropy: Tensor | None,
    tokens: PolicyTokens,
    loss: LossConfig,
    kl: KLConfig,
    *,
    kl_coef: float = 0.0,
    exact_kl: Tensor | None = None,
) -> PolicyLoss:
    """The share that these tokens have in the mini-batch's loss.

    Args:
        logprobs: [N, T] log π of the sampled tokens, with gradient.
        entropy: [N, T] of π at each token, nats, with gradient; None only without an entropy bonus.
        tokens: the rest, aligned with `logprobs`.
        loss: the surrogate with its bounds, the coefficient of the entropy bonus.
        kl: the estimator.
        kl_coef: weight of the KL in the loss; 0 reports the KL only.
        exact_kl: [N, T] KL(π‖reference) over the vocabulary, with gradient; what `kl.estimator=full` reads.
    """
    exact = exact_kl if kl.estimator is KLEstimator.full else None
    parts = _Parts(tokens=tokens, loss=loss, kl=kl, kl_coef=kl_coef)
    assert all(x is None or x.shape == tokens.mask.shape for x in (logprobs, entropy, exact)), tokens.mask.shape
    assert entropy is not None or loss.entropy_coef == 0, "an entropy bonus needs the entropy"
    assert kl_coef == 0 or exact is not None or parts.estimates_kl, "a KL in the loss needs what estimates it"
    inputs = (logprobs, entropy if loss.entropy_coef else None, exact if kl_coef else None)
    total, (*tokens_said, log_ratio_sums, reference_kl) = loss_by_rows(parts.of_rows, inputs)
    return PolicyLoss(
        loss=total,
        surrogate=TokenReport(*tokens_said),
        log_ratio_sums=log_ratio_sums,
        entropy=reference_kl.new_zeros(()).expand_as(tokens.mask) if entropy is None else entropy.detach(),
        reference_kl=reference_kl.expand_as(tokens.mask) if exact is None else exact.detach(),
    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The terms of the loss of any rows."""

    tokens: PolicyTokens
    loss: LossConfig
    kl: KLConfig
    kl_coef: float

    @property
    def estimates_kl(self) -> bool:
        """Whether the KL is made of the sampled tokens' log-probabilities."""
        return self.kl.estimator is not KLEstimator.full and self.tokens.reference_logprobs is not None

    def of_rows(self, rows: slice, inputs: Sequence[Tensor | None]) -> RowsLoss:
        """The sum over some rows; reports ratios and flags, the sums of log-ratios and the estimated KL [n, T or 1]."""
        given, entropy, exact_kl = inputs
        assert given is not None
        # Once for all terms, so that their gradients add up before they are rounded.
        logprobs, mask = at_least_float32(given), self.tokens.mask[rows]
        row_losses, reports = self._surrogate(rows, logprobs)
        if entropy is not None:
            row_losses = row_losses - self.loss.entropy_coef * _row_sums(entropy, mask)
        kl = self._estimated_kl(rows, logprobs) if self.estimates_kl else exact_kl
        if kl is not None and self.kl_coef:
            row_losses = row_losses + self.kl_coef * _row_sums(kl, mask)
        said = kl.detach() if kl is not None and self.estimates_kl else logprobs.new_zeros(len(mask), 1)
        return RowsLoss((row_losses * self.tokens.row_scales[rows]).sum(), (*reports, said))

    def _surrogate(self, rows: slice, logprobs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """([n] float64 sums over each row, reports)"""
        kind, mask = SURROGATES[self.loss.surrogate], self.tokens.mask[rows]
        seen = SurrogateInputs(
            policy=logprobs,
            proximal=self.tokens.proximal_logprobs[rows],
            advantages=zero_outside(at_least_float32(self.tokens.advantages[rows]), mask),
            mask=mask,
            selected=None if self.tokens.selected is None else self.tokens.selected[rows] & mask,
        )
        said = kind.function(seen, self.loss)
        losses = said.losses
        if self.tokens.weights is not None:
            weights = zero_outside(at_least_float32(self.tokens.weights[rows]), mask)
            losses = losses * (_pooled(weights, seen) if kind.pools_weights else weights)
        flags = (said.clipped_low, said.clipped_high, said.clipped_dual)
        reports = (
            seen.ratios.detach(),
            *(torch.zeros_like(mask) if flag is None else flag & mask for flag in flags),
            seen.log_ratios.detach().sum(1),
        )
        return _row_sums(losses, mask), reports

    def _estimated_kl(self, rows: slice, logprobs: Tensor) -> Tensor:
        """[n, T], 0 outside of the mask."""
        assert self.tokens.reference_logprobs is not None
        estimator = KL_ESTIMATORS[self.kl.estimator]
        if self.kl.straight_through:
            estimator = straight_through(estimator)
        return estimator(log_difference(logprobs, self.tokens.reference_logprobs[rows], self.tokens.mask[rows]))


def _row_sums(values: Tensor, mask: Tensor) -> Tensor:
    """[n, T] → [n] float64 over the mask."""
    return zero_outside(at_least_float32(values), mask).sum(1).double()


def _pooled(weights: Tensor, tokens: SurrogateInputs) -> Tensor:
    """[n, 1] geometric mean of each row's weights."""
    logs = zero_outside((weights + POOLED_WEIGHT_EPS).log(), tokens.mask)
    return tokens.row_mean(logs).exp()
