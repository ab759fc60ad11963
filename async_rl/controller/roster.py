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
    """The living generators, by incarnation, and those given up that may yet be heard again."""

    peers: dict[str, GeneratorPeer] = field(default_factory=dict)
    absent: dict[str, GeneratorPeer] = field(default_factory=dict)

    def join(self, name: str, incarnation: str, now_s: float) -> list[str]:
        """A generator says hello. Returns incarnations of the same name that thereby are dead."""
        dead = [p.incarnation for p in self.peers.values() if p.name == name and p.incarnation != incarnation]
        for old in dead:
            del self.peers[old]
        if incarnation not in self.peers:
            self.peers[incarnation] = GeneratorPeer(name=name, incarnation=incarnation, last_heard_s=now_s)
        return dead

    def heard(self, incarnation: str, now_s: float) -> GeneratorPeer | None:
        """Any message of a generator; None where its incarnation is not one of the living."""
        peer = self.peers.get(incarnation)
        if peer is not None:
            peer.last_heard_s = now_s
        return peer

    def take_back(self, incarnation: str, now_s: float) -> bool:
        """Someone given up is heard again: it has its weights still, but neither leases nor credit."""
        peer = self.absent.pop(incarnation, None)
        if peer is None:
            return False
        peer.last_heard_s = now_s
        peer.granted = peer.limit = 0
        self.peers[incarnation] = peer
        return True

    def give_up(self, incarnation: str) -> GeneratorPeer:
        """Strikes off a generator that cannot be reached, for now."""
        peer = self.peers.pop(incarnation)
        self.absent[incarnation] = peer
        return peer

    def silent(self, now_s: float, dead_after_s: float) -> list[str]:
        """Incarnations that were not heard for `dead_after_s`."""
        return [p.incarnation for p in self.peers.values() if now_s - p.last_heard_s > dead_after_s]

    def named(self, name: str) -> list[str]:
        """Living incarnations of a generator."""
        return [p.incarnation for p in self.peers.values() if p.name == name]

    def late_with(self, version: int) -> list[GeneratorPeer]:
        """Who does not sample with `version` yet; each is named once a version."""
        late = [p for p in self.peers.values() if p.active_version < version and p.warned_version < version]
        for peer in late:
            peer.warned_version = version
        return late

    def by_name(self) -> list[GeneratorPeer]:
        """The living, in the order of their names."""
        return sorted(self.peers.values(), key=lambda p: p.name)

    def by_freshness(self) -> list[GeneratorPeer]:
        """Who gets leases first: the newest weights, then the most room."""
        return sorted(self.peers.values(), key=lambda p: (-p.active_version, -p.credit, p.name))
