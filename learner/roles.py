"""The models of a learner, each behind the Protocol of what it does.

Owns which role is there for what. Knows no library: `learner.process` builds them.
"""

from dataclasses import dataclass

from learner.backend import ScoringBackend, TrainBackend, ValueBackend


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Who scores and who trains."""

    policy: TrainBackend
    reference: ScoringBackend | None = None
    """Frozen; for the KL. None where `kl.coef` is 0."""
    critic: ValueBackend | None = None
    """For estimators that need values; None otherwise."""
