"""The roster: which generators there are, what they sample with, and how much work they can take.

Owns what the controller knows of each generator's present life (its incarnation), and who has missed a publish:
whoever does not sample with a version, or a newer one, by its deadline is left out until it does. Pure: time comes
in as an argument. Knows no leases; who dies here loses them in the ledger.
"""

from dataclasses import dataclass, field

from async_rl.protocol import NO_VERSION, GeneratorStats


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
    joined_s: float
    """Deadlines of versions published earlier run from here."""
    stats: GeneratorStats | None = None
    missed_version: int | None = None
    """It is left out until it samples with this version or a newer one."""

    @property
    def has_weights(self) -> bool:
        """Whether it samples at all yet."""
        return self.active_version != NO_VERSION

    @property
    def is_left_out(self) -> bool:
        """Whether it missed a publish and has not caught up."""
        return self.missed_version is not None

    @property
    def credit(self) -> int:
        """Leases that it can take now."""
        return max(0, self.limit - self.granted)


@dataclass
class Roster:
    """The living generators, by incarnation, and those given up that may yet be heard again."""

    peers: dict[str, GeneratorPeer] = field(default_factory=dict)
    absent: dict[str, GeneratorPeer] = field(default_factory=dict)
    published_s: dict[int, float] = field(default_factory=dict)
    """When each version was published, oldest first; those that all the living have passed are forgotten."""

    def join(self, name: str, incarnation: str, now_s: float) -> list[str]:
        """A generator says hello. Returns incarnations of the same name that thereby are dead."""
        dead = [p.incarnation for p in self.peers.values() if p.name == name and p.incarnation != incarnation]
        for old in dead:
            del self.peers[old]
        if incarnation not in self.peers:
            self.peers[incarnation] = GeneratorPeer(
                name=name, incarnation=incarnation, last_heard_s=now_s, joined_s=now_s
            )
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
        peer.last_heard_s = peer.joined_s = now_s
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

    def begin_history(self, now_s: float) -> None:
        """The learner has gone back: nobody's version means anything until the next that it publishes is activated."""
        for peer in [*self.peers.values(), *self.absent.values()]:
            peer.active_version = NO_VERSION
            peer.missed_version = None
            # Nobody was heard while the run went back.
            peer.last_heard_s = now_s
        self.published_s = {}

    def publish(self, version: int, now_s: float) -> None:
        """A version can be read: from now on its deadline runs."""
        oldest = min((p.active_version for p in self.peers.values()), default=NO_VERSION)
        self.published_s = {v: at_s for v, at_s in self.published_s.items() if v > oldest} | {version: now_s}

    def activate(self, peer: GeneratorPeer, version: int) -> bool:
        """A generator samples with a version. True where that takes back one that was left out."""
        peer.active_version = version
        if peer.missed_version is None or version < peer.missed_version:
            return False
        peer.missed_version = None
        return True

    def leave_out_late(self, now_s: float, deadline_s: float) -> list[GeneratorPeer]:
        """Leaves out who has missed the first version that it still lacks; returns those, each once."""
        late = []
        for peer in self.peers.values():
            lacking = next((v for v in self.published_s if v > peer.active_version), None)
            if lacking is None or peer.is_left_out:
                continue
            if now_s - max(self.published_s[lacking], peer.joined_s) > deadline_s:
                peer.missed_version = lacking
                late.append(peer)
        return late

    @property
    def num_sampling(self) -> int:
        """How many may get training leases: they have weights, and those are not too late."""
        return sum(p.has_weights and not p.is_left_out for p in self.peers.values())

    def by_name(self) -> list[GeneratorPeer]:
        """The living, in the order of their names."""
        return sorted(self.peers.values(), key=lambda p: p.name)

    def by_freshness(self) -> list[GeneratorPeer]:
        """Who gets leases first: the newest weights, then the most room."""
        return sorted(self.peers.values(), key=lambda p: (-p.active_version, -p.credit, p.name))
