"""Which core each process of a CPU run gets.

Pure: the cores come in as an argument. An engine and the learner each keep one thread busy; two of them on
one core slow each other down tenfold, so generators get cores of their own first and the learner what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Cores by process; None: not pinned."""

    generators: list[list[int] | None]
    learner: list[int] | None

    @property
    def shares_cores(self) -> bool:
        """Whether some core has to serve two busy processes."""
        pinned = [core for cores in [*self.generators, self.learner] if cores is not None for core in cores]
        return len(pinned) != len(set(pinned))


def place(*, num_generators: int, cores: Sequence[int], pin: bool) -> Placement:
    """Pins generators to the first cores, one each, and the learner to the rest (to the last, if none is left)."""
    if not pin:
        return Placement(generators=[None] * num_generators, learner=None)
    ordered = sorted(cores)
    generators: list[list[int] | None] = [[ordered[i % len(ordered)]] for i in range(num_generators)]
    return Placement(generators=generators, learner=ordered[num_generators:] or ordered[-1:])
