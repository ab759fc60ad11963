"""The controller: one asyncio loop between generators that stream groups and a learner that takes batches.

    generators ──Credit──────────► roster ─────────────► lease: evaluation first, then training ──Grant──►
               ──Delivery────────► journal ─► Ack ─────► coordinator.deliver ─► buffer
               ──GroupFailed─────► coordinator.give_back: queued again, or failed
               ──Activated───────► roster: from now on its leases count from this version
    learner    ──Published───────► sent on to every generator, and to each that comes later
               ──BatchRequest────► held until coordinator.select has a batch ──Batch──► its shard of it
                                   or, if it scores meanwhile, a group of its version lies in the buffer ──Arrival──►
               ──Commit──────────► coordinator.commit: version + 1 opens room for new leases; with a checkpoint begun,
                                   the loop's state is taken down
               ──CheckpointWritten► that state beside it, rename, trim the journal ──CheckpointKept──►
    clock      ──────────────────► leases that are over, generators that fell silent
    supervisor ──learner died────► back to the last checkpoint, until the next life's ranks are named

| who waits     | for what                                                  | what wakes it                         |
|---------------|-----------------------------------------------------------|---------------------------------------|
| a generator   | leases: capacity, and weights fresh enough for the bound  | Commit, Activated, a group that ended |
| the learner   | groups_per_step groups, and stragglers due in this batch  | Delivery, a lease that ended          |
| an evaluation | a generator at its version                                | Activated, Delivery                   |

Every message and every tick is handled under one lock and ends in `_pump`, which answers whoever can be
answered: there is no other place where work is handed out. All decisions are the coordinator's.

After the learner's death the run goes back to its last checkpoint, as a resume would, while generators live on: their
leases end, and they get new ones once they sample with what the next life publishes, under its number of the history.

Life: starting (the first generator with weights, the first evaluation) → training → finishing (the last evaluation) →
ending (the learner checkpoints, exports and leaves) → ended. A stop goes to ending from anywhere; going back, to
training.

Owns the order of these things. Knows no Ray, no engine, no tensors, no terminal.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

from async_rl.checkpoints import BEGINNING
from async_rl.config.schema import RunConfig
from async_rl.controller.dealer import Dealer
from async_rl.controller.evaluations import Evaluations
from async_rl.controller.generator_desk import GeneratorDesk, sampling_of
from async_rl.controller.learner_desk import LearnerDesk
from async_rl.controller.ports import CheckpointStore, GroupJournal, Observer, Peers, PromptSource
from async_rl.coordinator import Coordinator
from async_rl.errors import RunError
from async_rl.protocol import (
    BatchRequest,
    CheckpointWritten,
    Commit,
    Hello,
    PeerMessage,
    Prompt,
    Published,
    Role,
    WeightManifest,
)
from async_rl.walltime import Walltime

logger = logging.getLogger(__name__)

TICK_S = 0.25


class Phase(StrEnum):
    """Where the run is in its life."""

    STARTING = "starting"
    TRAINING = "training"
    FINISHING = "finishing"
    ENDING = "ending"
    ENDED = "ended"


class Controller:
    """Runs one run; `run` returns when the learner has left after its last checkpoint."""

    def __init__(
        self,
        config: RunConfig,
        *,
        coordinator: Coordinator,
        dealer: Dealer,
        peers: Peers,
        journal: GroupJournal,
        checkpoints: CheckpointStore,
        prompts: PromptSource,
        held_out: Sequence[Prompt],
        observer: Observer,
        clock: Callable[[], float],
        trained_tokens: int = 0,
        next_evaluation_id: int = 0,
        began_s: float | None = None,
    ) -> None:
        self._config = config
        self._peers = peers
        self._journal = journal
        self._checkpoints = checkpoints
        self._observer = observer
        self._clock = clock
        self._evaluations = Evaluations(
            config, held_out=held_out, sampling=sampling_of(config.generation), next_id=next_evaluation_id
        )
        # Of the run's own start, where whoever started it knows better.
        self._walltime = Walltime(limit_s=config.checkpoint.walltime_s, began_s=clock() if began_s is None else began_s)
        self._generators = GeneratorDesk(
            config,
            coordinator=coordinator,
            evaluations=self._evaluations,
            peers=peers,
            journal=journal,
            prompts=prompts,
            observer=observer,
            clock=clock,
        )
        self._open_desk = partial(
            LearnerDesk,
            coordinator=coordinator,
            dealer=dealer,
            peers=peers,
            journal=journal,
            checkpoints=checkpoints,
            observer=observer,
            clock=clock,
        )
        self._learner = self._open_desk(trained_tokens=trained_tokens)
        self._ranks: frozenset[str] = frozenset()
        """The learner's present life, by incarnation: nobody else's word counts."""
        self._stop_reason: str | None = None
        self._lock = asyncio.Lock()
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.coordinator = coordinator
        self.phase = Phase.STARTING

    # --- from outside --------------------------------------------------------------------------

    async def run(self) -> None:
        """Serves until the learner has left.

        Raises:
            RunError: groups fail one after the other, or a process that the run needs is dead for good.
        """
        shells = [asyncio.create_task(self._receive(), name="receive"), asyncio.create_task(self._tick(), name="tick")]
        try:
            await asyncio.wait([self._finished, *shells], return_when=asyncio.FIRST_COMPLETED)
            for done in (*shells, self._finished):
                if done.done():
                    done.result()
        finally:
            for task in shells:
                task.cancel()
            await asyncio.gather(*shells, return_exceptions=True)
            await self._generators.dismiss("the run has ended")

    def checkpoint_soon(self) -> None:
        """Has the next batch that begins end with a checkpoint; the run goes on."""
        self._learner.want_checkpoint()
        self._observer.said("A checkpoint will be written after the next batch that begins.")

    def stop(self, reason: str) -> None:
        """Ends the run after the learner's present step, with a checkpoint."""
        if self._stop_reason is None and self.phase is not Phase.ENDED:
            self._stop_reason = reason
            self._observer.said(f"Stopping ({reason}): the step in hand is finished, then a checkpoint is written.")

    def learner_begins(self, ranks: frozenset[str]) -> None:
        """The learner's next life, by the incarnations of its ranks."""
        self._ranks = ranks

    async def roll_back(self) -> Path | None:
        """The learner is dead, with all its ranks: takes the run back to its last checkpoint, or to its start.

        Returns the checkpoint that its next life begins with; None begins with the model's own weights.

        Raises:
            UserError: the checkpoint or the journal cannot be read or written.
        """
        async with self._lock:
            self._ranks = frozenset()
            self._checkpoints.remove_unfinished()
            last = self._checkpoints.last()
            folder, state = (None, BEGINNING) if last is None else last
            await self._generators.begin_history()
            self._evaluations.roll_back(state.version)
            # Much to read, perhaps: the view goes on.
            journal = await asyncio.to_thread(self._journal.load, state.version)
            self.coordinator.roll_back(version=state.version, snapshot=state.ledger, journal=journal)
            self._learner = self._open_desk(trained_tokens=state.trained_tokens)
            self._walltime.interrupted()
            if self.phase is not Phase.STARTING and state.version < self._config.steps:
                self.phase = Phase.TRAINING
            self._observer.rolled_back(
                state.version, trained_tokens=state.trained_tokens, is_training=self.phase is Phase.TRAINING
            )
        return folder

    async def pass_over(self, checkpoint: Path) -> Path | None:
        """The checkpoint that the learner was to begin with is damaged: goes back to the one before.

        Returns that; None, and nothing changes, where there is none.

        Raises:
            UserError: as `roll_back`.
        """
        if self._checkpoints.pass_over(checkpoint) is None:
            return None
        return await self.roll_back()

    def learner_left(self) -> None:
        """The learner's process has ended by itself, without an error."""
        if self.phase is Phase.ENDING:
            self.phase = Phase.ENDED
            self._resolve(None)
        else:
            self.fail(RunError(f"the learner left while the run was {self.phase}"))

    def generator_died(self, name: str, reason: str) -> None:
        """A generator's process is dead: its leases go back at once."""
        self._generators.died(name, reason)

    def report(self, message: str) -> None:
        """Something that the user should read."""
        self._observer.said(message)

    def fail(self, error: Exception) -> None:
        """The run cannot go on."""
        self._resolve(error)

    def _resolve(self, error: Exception | None) -> None:
        if self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)

    # --- shells --------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            peer, message = await self._peers.receive()
            async with self._lock:
                await self._handle(peer, message)
                await self._pump()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            async with self._lock:
                await self._generators.tick()
                self._watch_walltime()
                await self._pump()
                self._observer.tick(
                    version=self.coordinator.version,
                    phase=self.phase,
                    counts=self.coordinator.counts,
                    roster=self._generators.roster,
                    now_s=self._clock(),
                )

    def _watch_walltime(self) -> None:
        if self._walltime.is_due(self._clock()):
            limit_s = self._config.checkpoint.walltime_s
            self.stop(f"checkpoint.walltime_s={limit_s:g} is nearly over; --resume auto goes on")

    async def _handle(self, peer: str, message: PeerMessage) -> None:
        match message:
            case Hello(role=Role.LEARNER):
                pass
            case BatchRequest() | Commit() | Published() | CheckpointWritten():
                if peer in self._ranks:
                    await self._handle_learner(peer, message)
                else:
                    logger.info("%s of %s is passed over: it is of an earlier life", type(message).__name__, peer)
            case _:
                await self._generators.handle(peer, message)

    async def _handle_learner(self, peer: str, message: BatchRequest | Commit | Published | CheckpointWritten) -> None:
        match message:
            case BatchRequest():
                self._learner.request(peer, message)
            case Commit():
                self._commit(message)
            case Published(manifest=manifest):
                await self._publish(manifest)
            case CheckpointWritten():
                self._walltime.checkpointed(message.stood_s + message.write_s)
                await self._learner.complete_checkpoint(
                    peer,
                    message,
                    next_evaluation_id=self._evaluations.next_id,
                    evaluation=self._evaluations.present,
                )

    # --- the life of the run -------------------------------------------------------------------

    async def _publish(self, manifest: WeightManifest) -> None:
        self._observer.published(manifest, self._clock())
        await self._generators.offer(manifest)
        self._evaluations.published(manifest.version)

    def _commit(self, commit: Commit) -> None:
        if not self._learner.commit(commit, next_evaluation_id=self._evaluations.next_id):
            return
        self._walltime.stepped(self._clock())
        if commit.version == self._config.steps:
            self._observer.training_ended(self._clock())
            self.phase = Phase.FINISHING
        if words := self._evaluations.committed(commit.version):
            self._observer.said(words)

    async def _pump(self) -> None:
        self._advance()
        await self._generators.grant(training=self.phase is Phase.TRAINING)
        if self.phase is Phase.TRAINING:
            await self._learner.serve()
        elif self.phase is Phase.ENDING:
            await self._learner.serve_end(self._stop_reason or f"all {self._config.steps} batches are trained")

    def _advance(self) -> None:
        """Moves on where an evaluation has ended or a stop was asked for."""
        evaluation = self._evaluations.present
        if evaluation is not None and evaluation.is_done:
            self._observer.evaluated(evaluation.result)
            self._learner.evaluated(evaluation.result)
            self._evaluations.drop()
        if self._stop_reason is not None and self.phase is not Phase.ENDED:
            self._evaluations.drop()
            self.phase = Phase.ENDING
        elif self._evaluations.is_between:
            if self.phase is Phase.FINISHING or self.coordinator.version >= self._config.steps:
                self.phase = Phase.ENDING
            elif self.phase is Phase.STARTING and self._generators.roster.num_sampling:
                self.phase = Phase.TRAINING
                self._learner.training_began()
                self._walltime.stepped(self._clock())
                self._observer.training_began(self._clock())
