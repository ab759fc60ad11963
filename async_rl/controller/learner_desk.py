"""The desk for the learner: batches, commits, checkpoints.

    BatchRequest ► held until the coordinator has a batch; every rank that asks gets the same bytes
    ArrivalRequest ► meanwhile a group that the learner's version sampled, one at a time
    Commit ► coordinator.commit
    CheckpointWritten ► the loop's state beside it, rename, trim the journal; CheckpointKept

Owns who waits for a batch, and which groups the journal may forget after the next checkpoint.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from async_rl.checkpoints import LoopState
from async_rl.controller.arrivals import Arrivals
from async_rl.controller.ports import CheckpointStore, GroupJournal, Observer, Peers
from async_rl.coordinator import Coordinator
from async_rl.protocol import ArrivalRequest, Batch, CheckpointKept, CheckpointWritten, Commit, End

logger = logging.getLogger(__name__)

HELD_WARNING_S = 30.0


class LearnerDesk:
    """Speaks with every learner rank."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        peers: Peers,
        journal: GroupJournal,
        checkpoints: CheckpointStore,
        observer: Observer,
        clock: Callable[[], float],
        trained_tokens: int,
    ) -> None:
        self._coordinator = coordinator
        self._peers = peers
        self._journal = journal
        self._checkpoints = checkpoints
        self._observer = observer
        self._clock = clock
        self._trained_tokens = trained_tokens
        self._arrivals = Arrivals()
        self._waiting: set[str] = set()
        self._waiting_since_s = 0.0
        self._warned_s = 0.0
        self._filtered_before = 0
        self._frame: bytes | None = None
        """The batch of the coordinator's version, encoded once."""
        self._kept_version: int | None = None
        """Of the last checkpoint."""
        self._trained: list[int] = []
        """Trained since the last checkpoint."""

    def request(self, peer: str, version: int) -> None:
        """A rank wants the batch of its version, or asks again since no answer came."""
        if version != self._coordinator.version:
            logger.warning(
                "%s asked for the batch of version %d, the learner is %d", peer, version, self._coordinator.version
            )
            return
        if not self._waiting:
            self._waiting_since_s = self._warned_s = self._clock()
            self._filtered_before = self._coordinator.counts.filtered
        self._waiting.add(peer)

    def request_arrival(self, peer: str, request: ArrivalRequest) -> None:
        """A rank that waits for its batch can score a group meanwhile."""
        # Else its batch has crossed the request.
        if peer in self._waiting and request.version == self._coordinator.version:
            self._arrivals.ask(peer, request)

    def training_began(self) -> None:
        """From now on a batch could have been formed: who waited for engines to start waits from here."""
        self._waiting_since_s = self._warned_s = self._clock()

    def commit(self, commit: Commit) -> bool:
        """The batch is trained. False, and nothing changes, for a commit that was heard already."""
        if commit.version <= self._coordinator.version:
            return False
        self._trained += [group.group_id for group in self._coordinator.batch]
        self._observer.trained(self._coordinator.version, self._coordinator.batch)
        self._trained_tokens += int(commit.metrics.scalars["learner/tokens"])
        self._coordinator.commit(commit.version)
        self._frame = None
        self._observer.stepped(commit.version, commit.metrics, self._clock())
        return True

    async def complete_checkpoint(self, peer: str, written: CheckpointWritten, *, next_evaluation_id: int) -> None:
        """Makes a checkpoint of what the learner wrote; from then on the journal forgets what it covers.

        Told twice, it answers twice.
        """
        assert written.version == self._coordinator.version, (written.version, self._coordinator.version)
        if self._kept_version != written.version:
            self._keep(written, next_evaluation_id)
        await self._peers.send(peer, CheckpointKept(version=written.version))

    def _keep(self, written: CheckpointWritten, next_evaluation_id: int) -> None:
        state = LoopState(
            version=written.version,
            ledger=self._coordinator.snapshot(),
            trained_tokens=self._trained_tokens,
            next_evaluation_id=next_evaluation_id,
            run_hash=self._observer.run_hash,
        )
        folder = self._checkpoints.complete(Path(written.folder), state)
        self._journal.remove(self._trained)
        self._trained = []
        self._observer.checkpointed(folder, written.version)
        self._kept_version = written.version

    async def serve(self) -> None:
        """Answers the waiting ranks, if a batch may start; else those that have time for a group."""
        if not self._waiting:
            return
        frame = self._frame or self._form_batch()
        if frame is not None:
            await self._answer(frame)
        elif self._arrivals.is_asked:
            await self._offer_arrivals()

    async def _offer_arrivals(self) -> None:
        groups = self._coordinator.fresh_groups()
        for peer in self._waiting:
            arrival = self._arrivals.answer(peer, groups)
            if arrival is not None:
                await self._peers.send(peer, arrival)

    async def serve_end(self, reason: str) -> None:
        """Tells the waiting ranks that there is no further batch."""
        await self._answer(msgspec.msgpack.encode(End(reason=reason, checkpoint=True)))

    async def _answer(self, frame: bytes) -> None:
        for peer in self._waiting:
            await self._peers.send_encoded(peer, frame)
        self._waiting.clear()
        self._arrivals.close()

    def _form_batch(self) -> bytes | None:
        decision = self._coordinator.select()
        if not decision.groups:
            self._warn_of_delay(decision.awaited)
            return None
        self._frame = msgspec.msgpack.encode(Batch(version=self._coordinator.version, groups=decision.groups))
        return self._frame

    def _warn_of_delay(self, awaited: list[int]) -> None:
        now_s = self._clock()
        if now_s - self._warned_s < HELD_WARNING_S:
            return
        self._warned_s = now_s
        filtered = self._coordinator.counts.filtered - self._filtered_before
        why = (
            f"for group {', '.join(map(str, awaited[:5]))}, which may not pass staleness.max"
            if awaited
            else "for groups" + (f" ({filtered} without signal were filtered meanwhile)" if filtered else "")
        )
        self._observer.said(
            f"The batch of version {self._coordinator.version} has waited {now_s - self._waiting_since_s:.0f} s {why}."
        )
