"""The roster: which generators there are, what they sample with, and how much work they can take.

Owns what the controller knows of each generator's present life (its incarnation). Pure: time comes in as
an argument. Knows no leases; who dies here loses them in the ledger.
"""

from dataclasses import dataclass, field

from async_rl.protocol import GeneratorStats

NO_VERSION = -1


@dataclass(kw_only=True)
class GeneratorPeer:
    """One incarnation of a generator."""

    name: str
    incarnation: str
    last_heard_s: float
    active_version: int = NO_VERSION
    granted: int = 0
    """Leases granted to this incarnation."""
    limit: int = 0
    """Leases that it can have been granted, as it last said: credit that no crossing message makes wrong."""
    stats: GeneratorStats | None = None
    warned_version: int = NO_VERSION
    """The last version whose missed deadline was reported."""

    @property
    def has_weights(self) -> bool:
        """Whether it samples at all yet."""
        return self.active_version != NO_VERSION

    @property
    def credit(self) -> int:
        """Leases that it can take now."""
        return max(0, self.limit - self.granted)


@dataclass
class Roster:
    """The living generators, by incarnation."""

    peers: dict[str, GeneratorPeer] = field(default_factory=dict)

    def join(self, name: str, incarnation: str, now_s: float) -> list[str]:
        """A generator says hello. Returns incarnations of the same name that thereby are dead."""
        dead = [p.incarnation for p in self.peers.values() if p.name == name and p.incarnation != incarnation]
        for old in dead:
            del self.peers[old]
        if incarnation not in self.peers:
            self.peers[incarnation] = GeneratorPeer(name=name, incarnation=incarnation, last_heard_s=now_s)
        return dead

    def heard(self, incarnation: str, now_s: float) -> GeneratorPeer | None:
        """Any message of a generator; None where its incarnation is not (or no longer) one of ours."""
        peer = self.peers.get(incarnation)
        if peer is not None:
            peer.last_heard_s = now_s
        return peer

    def remove_silent(self, now_s: float, dead_after_s: float) -> list[GeneratorPeer]:
        """Strikes off who was not heard for `dead_after_s`."""
        silent = [p for p in self.peers.values() if now_s - p.last_heard_s > dead_after_s]
        for peer in silent:
            del self.peers[peer.incarnation]
        return silent

    def remove_named(self, name: str) -> list[GeneratorPeer]:
        """Strikes off every incarnation of a generator."""
        named = [p for p in self.peers.values() if p.name == name]
        for peer in named:
            del self.peers[peer.incarnation]
        return named

    def late_with(self, version: int) -> list[GeneratorPeer]:
        """Who does not sample with `version` yet; each is named once a version."""
        late = [p for p in self.peers.values() if p.active_version < version and p.warned_version < version]
        for peer in late:
            peer.warned_version = version
        return late

    def by_freshness(self) -> list[GeneratorPeer]:
        """Who gets leases first: the newest weights, then the most room."""
        return sorted(self.peers.values(), key=lambda p: (-p.active_version, -p.credit, p.name))
