"""Where a process stands among the ranks of a learner, and how they meet.

Owns the value alone: what a rank is to do with it stands elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank of `world_size`; as it stands, the only one."""

    rank: int = 0
    """From 0; rank 0 speaks for all of them."""
    world_size: int = 1
    rendezvous: str = ""
    """`host:port`, where rank 0 listens; or torch's way of naming another meeting place (`env://`, `file://…`).
    Not read for a single rank."""
    local_rank: int = 0
    """Which of the GPUs that this process sees is its own."""

    @classmethod
    def under_torchrun(cls, environment: Mapping[str, str]) -> Self:
        """What torchrun's variables say; the only rank where there are none."""
        if "RANK" not in environment:
            return cls()
        return cls(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            rendezvous="env://",
            local_rank=int(environment["LOCAL_RANK"]),
        )
