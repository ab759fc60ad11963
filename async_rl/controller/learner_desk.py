"""The desk for the learner: batches, commits, checkpoints.

    BatchRequest ► held until the coordinator has a batch; every rank that asks for a shard gets the same bytes,
                   and a rank that can score meanwhile a group that the learner's version sampled, one at a time
    Commit ► coordinator.commit; if the learner begins a checkpoint with it, the loop's state is taken down
    CheckpointWritten, versions later perhaps ► that state beside it, rename, trim the journal; CheckpointKept

Ranks compute together, so what one of them has been told all are told: a batch that is out goes to everybody who asks
for its version, whatever has happened since, and the end comes to all ranks at the same version. A rank may be ahead of
the commit, which one of them says for all; its question waits for that.

Owns who waits for what, and which groups the journal may forget after the next checkpoint.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from async_rl.checkpoints import LoopState
from async_rl.controller.arrivals import Arrivals
from async_rl.controller.dealer import Dealer
from async_rl.controller.ports import CheckpointStore, GroupJournal, Observer, Peers
from async_rl.coordinator import Coordinator
from async_rl.evaluation import Evaluation, EvaluationResult
from async_rl.protocol import (
    Arrival,
    Batch,
    BatchRequest,
    CheckpointKept,
    CheckpointWritten,
    Commit,
    End,
    TrajectoryGroup,
)

logger = logging.getLogger(__name__)

HELD_WARNING_S = 30.0


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A checkpoint that the learner writes."""

    state: LoopState
    """Of its version, whatever came since."""
    trained: list[int]
    """Groups that it covers and the one before did not: the journal forgets them with it."""


class LearnerDesk:
    """Speaks with every learner rank."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        dealer: Dealer,
        peers: Peers,
        journal: GroupJournal,
        checkpoints: CheckpointStore,
        observer: Observer,
        clock: Callable[[], float],
        trained_tokens: int,
    ) -> None:
        self._coordinator = coordinator
        self._dealer = dealer
        self._peers = peers
        self._journal = journal
        self._checkpoints = checkpoints
        self._observer = observer
        self._clock = clock
        self._trained_tokens = trained_tokens
        self._arrivals = Arrivals()
        self._questions: dict[str, BatchRequest] = {}
        """That have no answer yet, by peer; of the coordinator's version or the next."""
        self._asked_version: int | None = None
        self._waiting_since_s = 0.0
        self._warned_s = 0.0
        self._filtered_before = 0
        self._shards: list[Batch] = []
        """Of the coordinator's version, once its batch is formed."""
        self._frames: dict[int, bytes] = {}
        """Shards that were asked for, encoded once."""
        self._kept_version: int | None = None
        """Of the last checkpoint."""
        self._trained: list[int] = []
        """Trained since the last checkpoint that was begun."""
        self._begun: dict[int, _Begun] = {}
        """Checkpoints in the making, by version."""
        self._scores: dict[int, float] = {}
        """Rewards of evaluations, by version."""
        self._wants_checkpoint = False
        """Of the version that the next batch makes."""

    def request(self, peer: str, request: BatchRequest) -> None:
        """A rank wants the batch of its version, or asks again since no answer came."""
        if request.version < self._coordinator.version:
            logger.warning(
                "%s asked for the batch of version %d, the learner is %d",
                peer,
                request.version,
                self._coordinator.version,
            )
            return
        assert 0 <= request.shard < self._dealer.num_shards, (request.shard, self._dealer.num_shards)
        if request.version != self._asked_version:
            self._asked_version = request.version
            self._waiting_since_s = self._warned_s = self._clock()
            self._filtered_before = self._coordinator.counts.filtered
        self._questions[peer] = request

    def training_began(self) -> None:
        """From now on a batch could have been formed: who waited for engines to start waits from here."""
        self._waiting_since_s = self._warned_s = self._clock()

    def want_checkpoint(self) -> None:
        """The next batch that is formed is to end with one."""
        self._wants_checkpoint = True

    def commit(self, commit: Commit, *, next_evaluation_id: int) -> bool:
        """The batch is trained. False, and nothing changes, for a commit that was heard already."""
        if commit.version <= self._coordinator.version:
            return False
        self._trained += [group.group_id for group in self._coordinator.batch]
        self._observer.trained(self._coordinator.version, self._coordinator.batch)
        self._trained_tokens += int(commit.metrics.scalars["learner/tokens"])
        self._coordinator.commit(commit.version)
        self._forget_batch()
        self._observer.stepped(commit.version, commit.metrics, self._clock())
        if commit.checkpoint:
            self._begin(next_evaluation_id)
        return True

    def evaluated(self, result: EvaluationResult) -> None:
        """An evaluation has ended: its reward is the score of its version's checkpoint, now or once there is one."""
        if not math.isfinite(result.reward):
            return
        self._scores[result.version] = result.reward
        if result.version in self._checkpoints.versions():
            self._checkpoints.score(result.version, result.reward)

    async def complete_checkpoint(
        self, peer: str, written: CheckpointWritten, *, next_evaluation_id: int, evaluation: Evaluation | None = None
    ) -> None:
        """Makes a checkpoint of what the learner wrote; from then on the journal forgets what it covers.

        Told twice, it answers twice. The checkpoint of an evaluation that is going on is not dropped meanwhile.
        """
        if self._kept_version is None or written.version > self._kept_version:
            if written.version not in self._begun:
                # The end's, which no commit told of: training waits for it.
                assert written.version == self._coordinator.version, (written.version, self._coordinator.version)
                self._begin(next_evaluation_id)
            spared = [] if evaluation is None else [evaluation.version]
            self._keep(written, self._begun.pop(written.version), spared)
        await self._peers.send(peer, CheckpointKept(version=written.version))

    def _begin(self, next_evaluation_id: int) -> None:
        state = LoopState(
            version=self._coordinator.version,
            ledger=self._coordinator.snapshot(),
            trained_tokens=self._trained_tokens,
            next_evaluation_id=next_evaluation_id,
            run_hash=self._observer.run_hash,
        )
        self._begun[state.version] = _Begun(state=state, trained=self._trained)
        self._trained = []
        self._observer.checkpoint_begun(state.version)

    def _keep(self, written: CheckpointWritten, begun: _Begun, spared: Sequence[int]) -> None:
        score = self._scores.get(written.version)
        folder = self._checkpoints.complete(Path(written.folder), begun.state, score=score, spared=spared)
        self._journal.remove(begun.trained)
        self._observer.checkpointed(folder, written.version, stood_s=written.stood_s, write_s=written.write_s)
        self._kept_version = written.version

    async def serve(self) -> None:
        """Answers the waiting ranks, if a batch may start; else those that have time for a group."""
        waiting = self._waiting()
        if waiting and not self._shards:
            self._form_batch()
        fresh = self._nothing if self._shards else self._coordinator.fresh_groups
        for peer, question in waiting.items():
            frame = self._arrival(question, fresh) or self._shard(question)
            if frame is not None:
                await self._answer(peer, frame)

    async def serve_end(self, reason: str) -> None:
        """Tells the waiting ranks that there is no further batch; those that have not had all that others had, get it
        first."""
        end = msgspec.msgpack.encode(End(reason=reason, checkpoint=True))
        for peer, question in self._waiting().items():
            await self._answer(peer, self._arrival(question, self._nothing) or self._shard(question) or end)

    def _waiting(self) -> dict[str, BatchRequest]:
        """Questions of the coordinator's version."""
        return {peer: q for peer, q in self._questions.items() if q.version == self._coordinator.version}

    async def _answer(self, peer: str, frame: bytes) -> None:
        del self._questions[peer]
        await self._peers.send_encoded(peer, frame)

    def _arrival(self, question: BatchRequest, fresh: Callable[[], Sequence[TrajectoryGroup]]) -> bytes | None:
        """What the rank is to score before its batch."""
        if question.num_arrivals is None:
            return None
        group = self._arrivals.get(question.num_arrivals, fresh)
        if group is None:
            return None
        arrival = Arrival(version=question.version, number=question.num_arrivals, group=group)
        return msgspec.msgpack.encode(arrival)

    def _shard(self, question: BatchRequest) -> bytes | None:
        if not self._shards:
            return None
        if question.shard not in self._frames:
            self._frames[question.shard] = msgspec.msgpack.encode(self._shards[question.shard])
        return self._frames[question.shard]

    def _form_batch(self) -> None:
        decision = self._coordinator.select()
        if not decision.groups:
            self._warn_of_delay(decision.awaited)
            return
        self._shards = Batch.cut(
            version=self._coordinator.version,
            groups=decision.groups,
            shards=self._dealer.deal(decision.groups),
            count=self._dealer.num_shards,
            checkpoint=self._wants_checkpoint,
        )
        self._wants_checkpoint = False

    def _forget_batch(self) -> None:
        self._shards = []
        self._frames = {}
        self._arrivals = Arrivals()

    @staticmethod
    def _nothing() -> Sequence[TrajectoryGroup]:
        return []

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
