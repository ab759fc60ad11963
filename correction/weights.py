"""Importance weights of the tokens: what the loss makes of π_prox/μ.

The behaviour policy μ (the engine, at the version that sampled the token) is not the policy at the
start of the batch, π_prox. The weight of a token corrects for that; it multiplies the token's loss and
carries no gradient. Must not know where log-probabilities come from.

A weighting is one of the dataclasses here, and `weigh` all there is to it.

Legend: N sequences, T tokens.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from correction.masked import zero_outside


class TokenWeights(NamedTuple):
    """What a weighting says of each token, detached."""

    weights: Tensor
    """[N, T] ≥ 0, 0 outside of the mask."""
    bounded: Tensor
    """[N, T] bool: the ratio is out of bounds, and so the weight is not the ratio."""


class Weighting(Protocol):
    """From ratios to weights."""

    @property
    def marks(self) -> tuple[float, float]:
        """Ratios below the first and above the second are counted as low and high in reports."""

    @property
    def drops(self) -> bool:
        """Whether a ratio that is out of bounds has weight 0, not the bound."""

    def weigh(self, ratios: Tensor, mask: Tensor) -> TokenWeights:
        """Weighs ratios π_prox/μ [N, T], finite, 0 outside of the mask [N, T] bool."""

    def with_cap(self, cap: float) -> Self:
        """The same weighting with another cap, and a floor that is not above it."""


@dataclass(frozen=True, kw_only=True)
class Truncated:
    """π_prox/μ within [floor, cap]: bounded variance for a bias where a bound binds.

    Truncated Importance Sampling (Ionides, 2008, https://doi.org/10.1198/106186008X320456); as the
    ρ̄ of IMPALA (https://arxiv.org/abs/1802.01561) for the mismatch of engine and learner.
    """

    cap: float
    floor: float = 0.0
    drops = False

    def __post_init__(self) -> None:
        assert 0 <= self.floor <= self.cap and self.cap > 0, self

    @property
    def marks(self) -> tuple[float, float]:
        """The bounds; without a floor, low is below 1/cap."""
        return self.floor or 1 / self.cap, self.cap

    def weigh(self, ratios: Tensor, mask: Tensor) -> TokenWeights:
        """Cuts ratios [N, T] off at the bounds."""
        ratios = ratios.detach()
        if self.floor == 0:
            return TokenWeights(ratios.clamp(max=self.cap), ratios > self.cap)
        weights = zero_outside(ratios.clamp(self.floor, self.cap), mask)
        return TokenWeights(weights, (weights != ratios) & mask)

    def with_cap(self, cap: float) -> Self:
        """As `Weighting` says."""
        return replace(self, cap=cap, floor=min(self.floor, cap))


@dataclass(frozen=True, kw_only=True)
class Masked:
    """π_prox/μ where it lies within [floor, cap], 0 elsewhere: what is too far off does not train.

    IcePop, https://arxiv.org/abs/2510.18855. The mask, and so what losses divide by, stays as it is.
    """

    floor: float
    cap: float
    drops = True

    def __post_init__(self) -> None:
        assert 0 <= self.floor <= self.cap and self.cap > 0, self

    @property
    def marks(self) -> tuple[float, float]:
        """The bounds."""
        return self.floor, self.cap

    def weigh(self, ratios: Tensor, mask: Tensor) -> TokenWeights:
        """Drops ratios [N, T] out of bounds."""
        ratios = ratios.detach()
        inside = (ratios >= self.floor) & (ratios <= self.cap)
        return TokenWeights(zero_outside(ratios, inside), mask & ~inside)

    def with_cap(self, cap: float) -> Self:
        """As `Weighting` says."""
        return replace(self, cap=cap, floor=min(self.floor, cap))


@dataclass(frozen=True, kw_only=True)
class Unweighted:
    """Every token counts as it is: right on-policy, biased off it."""

    drops = False

    @property
    def marks(self) -> tuple[float, float]:
        """No ratio is low or high."""
        return 0.0, math.inf

    def weigh(self, ratios: Tensor, mask: Tensor) -> TokenWeights:
        """1 in the mask, whatever the ratios [N, T] are."""
        return TokenWeights(mask.to(ratios.dtype), torch.zeros_like(mask))

    def with_cap(self, cap: float) -> Self:
        """As `Weighting` says: there is none."""
        del cap
        return self


OFF = Unweighted()

SMALLEST_MEAN = 1e-8
"""Weights with a smaller mean are not normalised: hardly any of them is left."""
