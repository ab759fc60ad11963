"""Supervised fine-tuning, with the backend that reinforcement learning uses.

    order(step) ─► examples ─► this shard's micro-batches ─► −log p(learned), mean over the whole batch ─► step
                     │ now and then: validation, over all shards ─► checkpoint ─► …

Owns this order, the loss, and when it ends. Runs on every rank at once, each with its part of every batch; who shows
what happens stands behind `Tell`. Knows no files but the run's checkpoints.
"""

import math
import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from async_rl.checkpoints import Checkpoints, SftState
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.schema import SftConfig
from async_rl.data.example_set import Example
from async_rl.data.sampler import EpochOrder
from async_rl.errors import NonFiniteError
from async_rl.sizing.flops import ModelFlops, causal_pairs
from async_rl.summary import Exit
from async_rl.walltime import Walltime
from learner.backend import StepResult, TokenScores, TrainBackend
from learner.checkpoint_writer import CheckpointWriter, WriteTimes
from learner.memory import peak_memory_gib
from learner.mesh import Mesh
from learner.micro_batch_plan import MicroBatchPlanner
from learner.sft_batch import ShardBatch
from learner.sft_events import Checkpointed, Said, Stepped, Tell, Validated
from learner.training_snapshot import TrainingSnapshot

TEMPERATURE = 1.0
MAX_SKIPPED = 5


class SftTrainer:
    """One rank of a fine-tuning."""

    def __init__(
        self,
        config: SftConfig,
        *,
        backend: TrainBackend,
        mesh: Mesh,
        sizes: ModelSizes,
        state: SftState,
        checkpoints: Checkpoints,
        peak_flops: float,
        tell: Tell,
        walltime: Walltime,
        is_stopping: Callable[[], bool] = lambda: False,
        wants_checkpoint: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            config: the run.
            backend: the model.
            mesh: this rank's place.
            sizes: of the model.
            state: to begin with; version 0, or that of a checkpoint where `load` follows.
            checkpoints: of the run.
            peak_flops: floating-point operations a second that the devices of all ranks do at most.
            tell: is told what happens.
            walltime: of the run, by the clock; the rank that speaks looks at it.
            is_stopping: whether this process was asked to end; one rank that says so ends all of them.
            wants_checkpoint: whether this process was asked for one since it was last called; one rank is enough.
            clock: seconds, monotonic.
        """
        self._config = config
        self._backend = backend
        self._mesh = mesh
        self._flops = ModelFlops.of(sizes)
        self._state = state
        self._checkpoints = checkpoints
        self._tell = tell
        self._is_stopping = is_stopping
        self._wants_checkpoint = wants_checkpoint
        self._walltime = walltime
        self._peak_flops = peak_flops
        self._clock = clock
        self._planner = MicroBatchPlanner(
            max_tokens=config.micro_batch_tokens,
            shares_prefixes=False,
            multiple_of=config.parallel.pp if config.parallel.vpp > 1 else 1,
            flops=self._flops,
        )
        self._validated: Validated | None = None
        """The last."""
        # What was resumed from is a checkpoint of its step already.
        self._saved_step = state.version
        self._writer = CheckpointWriter(clock)
        self._written: queue.SimpleQueue[Checkpointed] = queue.SimpleQueue()
        """Whole, and not told yet: who is told hears this thread alone."""

    def load(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint of the state's version."""
        self._backend.load(checkpoint / "learner")

    def train(self, examples: Sequence[Example], held_out: Sequence[Example]) -> Exit:
        """Steps up to `steps`, with a validation and a checkpoint now and then and at the end.

        Raises:
            NonFiniteError: one step after the other has a loss that is not finite.
            ResourceError: a checkpoint could not be written.
        """
        exit_ = self._train(examples, held_out)
        self._writer.finish()
        self._tell_of_checkpoints()
        return exit_

    def _train(self, examples: Sequence[Example], held_out: Sequence[Example]) -> Exit:
        config = self._config
        self._walltime.stepped(self._clock())
        order = EpochOrder(len(examples), seed=config.seed, shuffle=config.data.shuffle)
        for step in range(self._state.version + 1, config.steps + 1):
            first = (step - 1) * config.batch_size
            self._step([examples[order.row(first + n)] for n in range(config.batch_size)])
            is_last = step == config.steps
            if held_out and (is_last or step % config.validate_every == 0):
                self._validate(held_out)
            self._walltime.stepped(self._clock())
            is_stopping = self._mesh.anyone(self._is_stopping() or self._is_late()) and not is_last
            every, is_asked = config.checkpoint.every, self._mesh.anyone(self._wants_checkpoint())
            if is_last or is_stopping or is_asked or (every and step % every == 0):
                self._begin_checkpoint()
            self._tell_of_checkpoints()
            if is_stopping:
                return Exit.STOPPED
        return Exit.COMPLETED

    def _is_late(self) -> bool:
        if not (self._mesh.is_speaker and self._walltime.is_due(self._clock())):
            return False
        limit = f"checkpoint.walltime_s={self._walltime.limit_s:g}"
        self._tell(Said(message=f"{limit} is nearly over: stopping with a checkpoint; --resume auto goes on."))
        return True

    def validation_loss(self, examples: Sequence[Example]) -> float:
        """Mean of −log p over all learned tokens, nats; the same on every rank."""
        micro_batches = self._deal(examples).micro_batches
        scores = self._backend.score([m.packed for m in micro_batches], temperature=TEMPERATURE)
        own = [said.logprobs[m.learned].double().sum() for said, m in zip(scores, micro_batches, strict=True)]
        sums = torch.zeros(self._mesh.num_shards, dtype=torch.float64)
        sums[self._mesh.shard] = torch.stack(own).sum()
        return -float(self._mesh.merge(sums).sum()) / sum(example.num_learned for example in examples)

    def _step(self, examples: Sequence[Example]) -> None:
        began_s = self._clock()
        batch = self._deal(examples)
        micro_batches = batch.micro_batches
        num_learned = sum(example.num_learned for example in examples)

        def loss(scores: TokenScores, index: int) -> Tensor:
            learned = micro_batches[index].learned.to(scores.logprobs.device)
            return -torch.where(learned, scores.logprobs.double(), 0.0).sum() / num_learned

        result = self._backend.step([m.packed for m in micro_batches], loss, temperature=TEMPERATURE)
        self._count(result, num_learned)
        self._report(examples, batch, result, self._clock() - began_s)
        if self._state.skipped_in_a_row > MAX_SKIPPED:
            raise NonFiniteError(
                f"{self._state.skipped_in_a_row} steps in a row had a loss or gradients that are not finite, the last "
                f"with loss {result.loss:g}: lower optimizer.lr; a resume goes on from the newest checkpoint, if any"
            )

    def _count(self, result: StepResult, num_learned: int) -> None:
        state = self._state
        self._state = msgspec.structs.replace(
            state,
            version=state.version + 1,
            trained_tokens=state.trained_tokens + num_learned,
            skipped_in_a_row=state.skipped_in_a_row + 1 if result.skipped else 0,
        )

    def _deal(self, examples: Sequence[Example]) -> ShardBatch:
        return ShardBatch.deal(examples, self._planner, shard=self._mesh.shard, num_shards=self._mesh.num_shards)

    def _report(self, examples: Sequence[Example], batch: ShardBatch, result: StepResult, step_s: float) -> None:
        self._tell(
            Stepped(
                step=self._state.version,
                result=result,
                num_tokens=sum(map(len, examples)),
                num_learned=sum(example.num_learned for example in examples),
                step_s=step_s,
                imbalance=batch.imbalance,
                mfu=self._mfu(examples, step_s),
                memory_gib=self._mesh.largest(peak_memory_gib()),
            )
        )

    def _mfu(self, examples: Sequence[Example], step_s: float) -> float:
        flops = self._flops.training(
            tokens=sum(map(len, examples)),
            scored_tokens=sum(example.num_scored for example in examples),
            pairs=sum(causal_pairs(len(example)) for example in examples),
        )
        return flops / (step_s * self._peak_flops)

    def _validate(self, held_out: Sequence[Example]) -> None:
        loss = self.validation_loss(held_out)
        step, best = self._state.version, self._state.best_loss
        if math.isfinite(loss) and (best is None or loss < best):
            self._state = msgspec.structs.replace(self._state, best_step=step, best_loss=loss)
        state = self._state
        self._validated = Validated(step=step, loss=loss, best_step=state.best_step, best_loss=state.best_loss)
        self._tell(self._validated)

    def _begin_checkpoint(self) -> None:
        if self._saved_step == self._state.version:
            return
        state, score = self._state, self._score
        written = self._checkpoints.beside(state.version)

        def complete(times: WriteTimes) -> None:
            self._walltime.checkpointed(times.stood_s + times.write_s)
            if self._mesh.is_speaker:
                folder = self._checkpoints.complete(written, state, score=score)
                self._written.put(
                    Checkpointed(step=state.version, folder=str(folder), stood_s=times.stood_s, write_s=times.write_s)
                )

        self._writer.begin(self._snapshot, written, complete)
        self._saved_step = state.version

    @property
    def _score(self) -> float | None:
        """Of the present step, where it was validated."""
        last = self._validated
        if last is None or last.step != self._state.version or not math.isfinite(last.loss):
            return None
        return -last.loss

    def _snapshot(self) -> TrainingSnapshot:
        return TrainingSnapshot(models={"learner": self._backend.snapshot()}, is_speaker=self._mesh.is_speaker)

    def _tell_of_checkpoints(self) -> None:
        while not self._written.empty():
            self._tell(self._written.get())
