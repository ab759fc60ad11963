"""Memory of one device, part by part. Pure."""

from dataclasses import dataclass

GIB = 2**30
PARTS = ("weights", "gradients", "optimizer", "activations", "keys and values", "working memory", "runtime")
"""In the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What takes memory, and how much."""

    name: str
    """One of `PARTS`."""
    num_bytes: int

    def __post_init__(self) -> None:
        assert self.name in PARTS, self.name

    @property
    def gib(self) -> float:
        """In GiB."""
        return self.num_bytes / GIB


@dataclass(frozen=True, kw_only=True)
class Account:
    """All that lies on one device."""

    owner: str
    """Whose device it is."""
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def gib(self) -> float:
        """The total in GiB."""
        return self.total / GIB

    def part(self, name: str) -> Part | None:
        """The part of that name, if it has one."""
        return next((part for part in self.parts if part.name == name), None)
