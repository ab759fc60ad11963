"""Everything that is said of a correction, for people: detached, summed in float64, defined for an empty mask (0).

Owns what belongs to a whole report; each part stands in a module of its own, and `buckets` has the same numbers by
staleness and by position.
"""

from dataclasses import dataclass

from correction.decomposition import DecompositionReport
from correction.gap import PolicyGap
from correction.rejection_report import CriterionReport, Rejected
from correction.weight_report import WeightReport


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Of a batch and what became of it."""

    gap: PolicyGap
    """Of π_prox from μ."""
    weights: WeightReport
    criteria: tuple[CriterionReport, ...]
    """In the order of the correction's criteria."""
    vetoed: Rejected
    """By the veto alone; nothing where it is off."""
    rejected: Rejected
    """By all criteria and the veto together."""
    decomposition: DecompositionReport | None
    """Where π_b of some tokens was given."""
