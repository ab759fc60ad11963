"""The coefficient of the KL to the reference, from batch to batch.

Owns how it moves. A controller is a value: `after` gives the next one, and its `coef` is all that a checkpoint has to
keep. Must not know how the KL is estimated.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from async_rl.config.objective import KLConfig

MAX_ERROR = 0.2
"""A KL further from its target than this share of it moves the coefficient no faster."""


class KLController(Protocol):
    """Says the coefficient of a batch."""

    @property
    def coef(self) -> float:
        """Of the next batch; ≥ 0."""

    def after(self, kl_mean: float, num_sequences: int) -> "KLController":
        """The controller for the batch that follows one of this KL (nats a token) and so many sequences."""

    def resumed(self, coef: float) -> "KLController":
        """The controller as it was when a checkpoint kept this `coef`."""


@dataclass(frozen=True, kw_only=True)
class FixedKL:
    """Stays where the config put it, after a resume too."""

    coef: float

    def after(self, kl_mean: float, num_sequences: int) -> Self:
        """Itself."""
        del kl_mean, num_sequences
        return self

    def resumed(self, coef: float) -> Self:
        """Itself: the config of the resumed run holds."""
        del coef
        return self


@dataclass(frozen=True, kw_only=True)
class AdaptiveKL:
    """Grows while the KL is above its target, shrinks while it is below.

    coef ← coef · (1 + clip(KL/target − 1, ±0.2) · min(1, sequences/horizon)): Ziegler et al., Fine-Tuning Language
    Models from Human Preferences (https://arxiv.org/abs/1909.08593). A batch larger than the horizon moves it no
    further than one of the horizon's size, so that it never changes sign.
    """

    coef: float
    target: float
    """Wanted KL, nats a token; above 0."""
    horizon: int
    """Sequences over which a correction is spread."""

    def after(self, kl_mean: float, num_sequences: int) -> Self:
        """Moved by one batch; not by one whose KL is no number."""
        if math.isnan(kl_mean):
            return self
        error = min(max(kl_mean / self.target - 1, -MAX_ERROR), MAX_ERROR)
        return self.resumed(self.coef * (1 + error * min(1.0, num_sequences / self.horizon)))

    def resumed(self, coef: float) -> Self:
        """With another coefficient."""
        return dataclasses.replace(self, coef=coef)


KL_CONTROLLERS: dict[str, Callable[[KLConfig], KLController]] = {
    "fixed": lambda kl: FixedKL(coef=kl.coef),
    "adaptive": lambda kl: AdaptiveKL(coef=kl.coef, target=kl.target, horizon=kl.horizon),
}
"""Keys are the words of `async_rl.config.objective.KLController`."""
