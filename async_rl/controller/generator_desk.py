"""The desk for generators: takes what they deliver, hands out leases and weights.

    Credit, Activated, Heartbeat ► the roster
    Delivery ► accepted? journal → coordinator; Ack in any case, since a duplicate must be forgotten too
    GroupFailed, silence, death, a lease's end ► coordinator.give_back
    RewardFailures ► told to the user, now and then
    begin_history ◄ the learner has gone back: leases end, versions count from the next publish on
    grant ◄ evaluation first, then training

Owns the roster and the order "journaled before acked". Decides nothing about groups: the coordinator does.
"""

import logging
from collections.abc import Callable

from async_rl.config.generation import GenerationConfig
from async_rl.config.schema import RunConfig
from async_rl.controller.complaints import Complaints
from async_rl.controller.evaluations import Evaluations
from async_rl.controller.ports import GroupJournal, Observer, Peers, PromptSource
from async_rl.controller.roster import GeneratorPeer, Roster
from async_rl.coordinator import Coordinator
from async_rl.errors import RunError
from async_rl.ledger import Ledger, State
from async_rl.protocol import (
    Ack,
    Activated,
    Credit,
    Delivery,
    End,
    Grant,
    GroupFailed,
    Heartbeat,
    Hello,
    Lease,
    PeerMessage,
    Published,
    Purpose,
    RewardFailures,
    Sampling,
    TrajectoryGroup,
    WeightManifest,
    Withdraw,
)

logger = logging.getLogger(__name__)


def sampling_of(generation: GenerationConfig) -> Sampling:
    """How training samples are drawn."""
    return Sampling(
        max_tokens=generation.max_new_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
    )


class GeneratorDesk:
    """Speaks with every generator."""

    def __init__(
        self,
        config: RunConfig,
        *,
        coordinator: Coordinator,
        evaluations: Evaluations,
        peers: Peers,
        journal: GroupJournal,
        prompts: PromptSource,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._evaluations = evaluations
        self._peers = peers
        self._journal = journal
        self._prompts = prompts
        self._observer = observer
        self._clock = clock
        self._history = 0
        """How often the learner has gone back."""
        self._published: Published | None = None
        self._complaints = Complaints()
        self.roster = Roster()

    # --- what generators say -------------------------------------------------------------------

    async def handle(self, peer: str, message: PeerMessage) -> None:
        """Any message of a generator.

        Raises:
            RunError: `ledger.max_failed` groups in a row have failed.
        """
        now_s = self._clock()
        if isinstance(message, Hello):
            await self._join(peer, message.name, now_s)
            return
        generator = self.roster.heard(peer, now_s)
        if generator is None:
            await self._take_back(peer, now_s)
            return
        match message:
            case Credit(limit=limit):
                generator.limit = limit
            case Delivery(purpose=purpose, group=group):
                await self._take_delivery(peer, purpose, group)
            case GroupFailed():
                self._take_failure(peer, message)
            case RewardFailures():
                self._hear_complaint(generator.name, message, now_s)
            case Heartbeat(stats=stats):
                generator.stats = stats
                self._observer.reported(generator.name, stats, now_s)
            case Activated():
                self._take_activation(generator, message, now_s)
            case _:
                raise AssertionError(f"{type(message).__name__} is not a generator's")

    async def _join(self, peer: str, name: str, now_s: float) -> None:
        for dead in self.roster.join(name, peer, now_s):
            self._lose(dead, name, "its process was started again")
        if self._published is not None:
            await self._peers.send(peer, self._published)

    async def _take_back(self, peer: str, now_s: float) -> None:
        """Someone given up speaks: a welcome makes it say again what it has and can."""
        if self.roster.take_back(peer, now_s):
            self._observer.said(f"{self.roster.peers[peer].name} is heard again.")
            await self._peers.welcome(peer)
            if self._published is not None:
                await self._peers.send(peer, self._published)

    async def _take_delivery(self, peer: str, purpose: Purpose, group: TrajectoryGroup) -> None:
        if purpose is Purpose.EVALUATE:
            if self._evaluations.present is not None:
                self._evaluations.present.deliver(group)
        elif self._coordinator.accepts(group):
            has_signal = group.has_signal or not self._config.advantage.filter_zero_signal
            if has_signal:
                self._journal.append(group)
            self._coordinator.deliver(group, has_signal=has_signal)
        await self._peers.send(peer, Ack(purpose=purpose, group_id=group.group_id, attempt=group.attempt))

    def _take_activation(self, generator: GeneratorPeer, activated: Activated, now_s: float) -> None:
        if activated.history != self._history:
            # Weights of a history that is undone, which it was reading when the learner went back.
            return
        activation = activated.activation
        if self.roster.activate(generator, activation.version):
            self._observer.said(f"{generator.name} has caught up (version {activation.version}) and is back.")
        self._observer.activated(generator.name, activation, now_s)

    def _hear_complaint(self, name: str, failures: RewardFailures, now_s: float) -> None:
        complaint = self._complaints.hear(name, failures, now_s)
        if complaint is not None:
            self._observer.said(complaint)

    def _take_failure(self, peer: str, failure: GroupFailed) -> None:
        if failure.purpose is Purpose.EVALUATE:
            if self._evaluations.present is not None:
                self._evaluations.present.ledger.give_back(failure.group_id, failure.attempt, peer, failure.reason)
            return
        state = self._coordinator.give_back(failure.group_id, failure.attempt, peer, failure.reason)
        if state is not State.FAILED:
            return
        attempts = self._config.ledger.max_attempts
        self._observer.said(f"Group {failure.group_id} failed after {attempts} attempts: {failure.reason}")
        in_a_row = self._coordinator.failed_in_a_row
        if in_a_row >= self._config.ledger.max_failed:
            raise RunError(f"{in_a_row} groups in a row have failed, the last because: {failure.reason}")

    # --- weights -------------------------------------------------------------------------------

    async def offer(self, manifest: WeightManifest) -> None:
        """A version can be read: every generator hears of it, and each that comes later."""
        self._published = Published(manifest=manifest, history=self._history)
        self.roster.publish(manifest.version, self._clock())
        for peer in list(self.roster.peers):
            await self._peers.send(peer, self._published)

    async def begin_history(self) -> None:
        """The learner goes back: what generators work on is taken from them, before the coordinator forgets it.

        Late deliveries and failures do not count, and nobody gets a lease before it has activated what the learner
        publishes next: versions of the history that is undone have the same numbers.
        """
        await self._withdraw(self._coordinator.ledger, Purpose.TRAIN)
        if self._evaluations.present is not None:
            await self._withdraw(self._evaluations.present.ledger, Purpose.EVALUATE)
        self._history += 1
        self._published = None
        self.roster.begin_history(self._clock())

    async def _withdraw(self, ledger: Ledger, purpose: Purpose) -> None:
        held: dict[str, list[int]] = {}
        for group_id, holding in ledger.holdings():
            held.setdefault(holding.holder, []).append(group_id)
        for holder, group_ids in held.items():
            await self._peers.send(holder, Withdraw(group_ids=group_ids, purpose=purpose))

    # --- what ends leases ----------------------------------------------------------------------

    async def tick(self) -> None:
        """Ends leases whose time is over and those of silent generators; names who is late with its weights."""
        now_s = self._clock()
        for incarnation in self.roster.silent(now_s, self._config.channel.dead_after_s):
            self._give_up(incarnation, f"silent for {self._config.channel.dead_after_s:g} s")
        for group_id, holder in self._coordinator.expire(now_s):
            self._observer.said(f"The lease of group {group_id} timed out at {holder}.")
            await self._peers.send(holder, Withdraw(group_ids=[group_id], purpose=Purpose.TRAIN))
        if self._evaluations.present is not None:
            self._evaluations.present.ledger.expire(now_s)
        await self._leave_out_late(now_s)

    async def _leave_out_late(self, now_s: float) -> None:
        deadline_s = self._config.weights.deadline_s
        for peer in self.roster.leave_out_late(now_s, deadline_s):
            assert self._published is not None
            self._observer.said(
                f"{peer.name} has not activated version {peer.missed_version} within "
                f"weights.deadline_s={deadline_s:g}: it is left out until it catches up."
            )
            # What it could not read may be read now.
            await self._peers.send(peer.incarnation, self._published)

    def died(self, name: str, reason: str) -> None:
        """A generator's process is dead, as its supervisor says."""
        for incarnation in self.roster.named(name):
            self._give_up(incarnation, reason)

    def _give_up(self, incarnation: str, reason: str) -> None:
        peer = self.roster.give_up(incarnation)
        self._lose(incarnation, peer.name, reason)

    def _lose(self, incarnation: str, name: str, reason: str) -> None:
        returned = self._coordinator.holder_died(incarnation, f"generator lost: {reason}")
        if self._evaluations.present is not None:
            self._evaluations.present.ledger.give_back_all(incarnation, reason)
        self._observer.said(f"{name} is gone ({reason}): {len(returned)} leases went back to the queue.")

    # --- handing out ---------------------------------------------------------------------------

    async def grant(self, *, training: bool) -> None:
        """Gives every generator what it may have now; evaluations come first, since they hold the run up."""
        for generator in self.roster.by_freshness():
            leases = self._evaluation_leases(generator)
            if training:
                leases += self._training_leases(generator, wanted=generator.credit - len(leases))
            if not leases:
                continue
            generator.granted += len(leases)
            if not await self._peers.send(generator.incarnation, Grant(leases=leases)):
                self._give_up(generator.incarnation, "unreachable")

    def _evaluation_leases(self, generator: GeneratorPeer) -> list[Lease]:
        if self._evaluations.present is None:
            return []
        return self._evaluations.present.lease(
            generator.incarnation,
            generator.active_version,
            wanted=generator.credit,
            now_s=self._clock(),
            timeout_s=self._config.ledger.lease_timeout_s,
        )

    def _training_leases(self, generator: GeneratorPeer, *, wanted: int) -> list[Lease]:
        if wanted <= 0 or not generator.has_weights or generator.is_left_out:
            return []
        timeout_s = self._config.ledger.lease_timeout_s
        terms = self._coordinator.lease(
            generator.incarnation,
            generator.active_version,
            wanted=wanted,
            now_s=self._clock(),
            timeout_s=timeout_s,
            is_alone=self.roster.num_sampling <= 1,
        )
        return [
            Lease(
                group_id=t.group_id,
                attempt=t.attempt,
                purpose=Purpose.TRAIN,
                prompt=self._prompts.prompt(t.group_id),
                group_size=self._config.generation.group_size,
                sampling=sampling_of(self._config.generation),
                timeout_s=timeout_s,
                greedy_baseline=self._config.advantage.takes_greedy_baseline,
            )
            for t in terms
        ]

    async def dismiss(self, reason: str) -> None:
        """The run is over."""
        for peer in self.roster.peers:
            await self._peers.send(peer, End(reason=reason, checkpoint=False))
