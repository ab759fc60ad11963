"""The learner: takes batches, makes versions, hands out weights, and never waits for a generator.

    source.next_batch(v) ──► TrainingBatch ──► updater.score ──► updater.update ──► version v + 1
        │ meanwhile: updater.score_arrival                                            │
      publisher.publish(v + 1) ◄── policy.named_weights, every `weights.publish_every` ◄┤  first: generators wait
      source.commit(v + 1, metrics) ◄───────────────────────────────────────────────────┤  then the ledger
      updater.snapshot ──► thread: write ──► source.complete_checkpoint, now and then ◄─┘

All ranks go through this at once, each with its shard of the batch. One of them speaks for all: it commits, publishes
and completes checkpoints; the others help to bring weights and checkpoints together.

Owns this order and the times it takes. Knows no controller, no generator and no transport: they stand behind
Protocols. What a step computes is the updater's business.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from async_rl.config.schema import RunConfig
from async_rl.config.staleness import OverBound
from async_rl.errors import NonFiniteError
from async_rl.protocol import Batch, End, StepMetrics
from async_rl.sizing.flops import ModelFlops
from async_rl.weights.transport import WeightPublisher
from learner.batch import TrainingBatch
from learner.batch_source import BatchSource, OnArrival
from learner.checkpoint_writer import CheckpointWriter, WriteTimes
from learner.memory import peak_memory_gib
from learner.mesh import Mesh, SingleRank
from learner.metrics import step_metrics
from learner.outcome import UpdateOutcome
from learner.roles import Roles
from learner.update import Updater

logger = logging.getLogger(__name__)


class Stopwatch:
    """Seconds by phase."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = clock()

    def lap(self) -> float:
        """Since the last lap."""
        now_s = self._clock()
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        return elapsed_s


class Learner:
    """`run` returns when the source says that the run is over."""

    def __init__(
        self,
        config: RunConfig,
        *,
        roles: Roles,
        flops: ModelFlops,
        peak_flops: float,
        publisher: WeightPublisher | None,
        source: BatchSource,
        run_folder: Path,
        version: int,
        mesh: Mesh | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            config: the run.
            roles: the models, as the config asks for them.
            flops: of the policy.
            peak_flops: floating-point operations a second that the devices of all ranks do at most.
            publisher: takes the weights; None on ranks that do not speak.
            source: gives this rank's shards of the batches.
            run_folder: gets `checkpoints` and at the end `model`.
            version: batches that the policy has been trained on; above 0 where `load` follows.
            mesh: of the ranks; None: this is the only one.
            clock: seconds, monotonic.
        """
        self._config = config
        self._roles = roles
        self._mesh = mesh or SingleRank()
        assert self._mesh.is_speaker == (publisher is not None), "the rank that speaks publishes"
        self._updater = Updater(roles, config, flops=flops, mesh=self._mesh)
        self._publisher = publisher
        self._source = source
        self._run_folder = run_folder
        self._version = version
        self._peak_flops = peak_flops
        self._clock = clock
        self._skipped_in_a_row = {"policy": 0, "critic": 0}
        # What was resumed from is a checkpoint of its version already.
        self._saved_version = version if version > 0 else None
        self._writer = CheckpointWriter(clock)
        self._started_s = clock()
        self._idle_s = 0.0

    def load(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint of `version`."""
        self._updater.load(checkpoint)

    def run(self) -> None:
        """Trains to the end, then exports the model.

        Raises:
            NonFiniteError: more than `learner.max_skipped` steps in a row had to be skipped.
            ResourceError: a checkpoint could not be written.
        """
        self._publish()
        while True:
            watch = Stopwatch(self._clock)
            answer = self._source.next_batch(self._version, self._on_arrival)
            wait_s = watch.lap()
            self._idle_s += wait_s
            if isinstance(answer, End):
                break
            self._train(answer, wait_s=wait_s, watch=watch)
        logger.info("the run is over: %s", answer.reason)
        if answer.checkpoint and self._saved_version != self._version:
            self._begin_checkpoint()
        self._writer.finish()
        if self._mesh.is_speaker:
            self._source.await_checkpoint()
        self._roles.policy.export(self._run_folder / "model")

    def _train(self, received: Batch, *, wait_s: float, watch: Stopwatch) -> None:
        """One batch, one version. Weights go out before anything is said about the step."""
        batch = self._lay_out(received)
        scores = self._updater.score(batch)
        score_s = watch.lap()
        outcome = self._updater.update(batch, scores)
        update_s = watch.lap()
        self._version += 1
        self._count_skipped(outcome)
        if self._version % self._config.weights.publish_every == 0 or self._version == self._config.steps:
            self._publish()
        publish_s = watch.lap()
        memory_gib = self._mesh.largest(peak_memory_gib())
        every = self._config.checkpoint.every
        checkpoint = received.checkpoint or bool(every and self._version % every == 0)
        if self._mesh.is_speaker:
            metrics = step_metrics(batch, scores, outcome, components=self._config.advantage.reward_components)
            metrics.scalars.update(self._efficiency(outcome, score_s + update_s, memory_gib))
            times = {
                "learner/score_s": score_s,
                "learner/update_s": update_s,
                "learner/publish_s": publish_s,
                "learner/metrics_s": watch.lap(),
            }
            self._commit(metrics, wait_s, times, checkpoint=checkpoint)
        if checkpoint:
            self._begin_checkpoint()

    @property
    def _on_arrival(self) -> OnArrival | None:
        return self._updater.score_arrival if self._config.correction.score_on_arrival else None

    def _lay_out(self, received: Batch) -> TrainingBatch:
        staleness = self._config.staleness
        is_masked = staleness.over_bound is OverBound.mask
        batch = TrainingBatch.build(received, mask_above=staleness.max if is_masked else None, mesh=self._mesh)
        # The last place where the promise can be kept: what is older must not train.
        oldest = int(batch.trained_staleness.max(initial=0))
        assert oldest <= staleness.max or staleness.over_bound is OverBound.train, (oldest, staleness.max)
        return batch

    def _commit(self, metrics: StepMetrics, wait_s: float, times: dict[str, float], *, checkpoint: bool) -> None:
        step_s = sum(times.values())
        counters = {
            "learner/wait_s": wait_s,
            "learner/step_s": step_s,
            "learner/tokens_per_s": metrics.scalars["learner/tokens"] / max(step_s + wait_s, 1e-9),
            "learner/idle_s": self._idle_s,
            "learner/elapsed_s": self._clock() - self._started_s,
        }
        scalars = metrics.scalars | times | counters
        metrics = msgspec.structs.replace(metrics, scalars=scalars)
        self._source.commit(self._version, metrics, checkpoint=checkpoint)

    def _efficiency(self, outcome: UpdateOutcome, busy_s: float, memory_gib: float) -> dict[str, float]:
        """Of the passes and steps of a batch."""
        flops_per_s = self._updater.flops(outcome) / max(busy_s, 1e-9)
        return {
            "learner/memory_gib": memory_gib,
            "learner/tflops": flops_per_s / 1e12,
            "learner/mfu": flops_per_s / self._peak_flops,
        }

    def _publish(self) -> None:
        policy = self._roles.policy
        weights = policy.named_adapters() if self._config.learner.lora.sends_adapter else policy.named_weights()
        if self._publisher is None:
            # The speaker gets from this rank what it alone holds.
            deque(weights, maxlen=0)
        else:
            self._source.publish(self._publisher.publish(self._version, weights))

    def _begin_checkpoint(self) -> None:
        version = self._saved_version = self._version
        folder = self._run_folder / "checkpoints" / f".writing-{version:08d}"

        def tell(times: WriteTimes) -> None:
            if self._mesh.is_speaker:
                self._source.complete_checkpoint(version, folder, times)

        self._writer.begin(self._updater.snapshot, folder, tell)

    def _count_skipped(self, outcome: UpdateOutcome) -> None:
        for model, steps in (("policy", outcome.steps), ("critic", outcome.critic_steps)):
            for step in steps:
                self._skipped_in_a_row[model] = self._skipped_in_a_row[model] + 1 if step.skipped else 0
                if step.skipped:
                    logger.warning(
                        "version %d: a step of the %s with loss %g was skipped", self._version, model, step.loss
                    )
                self._refuse_too_many(model)

    def _refuse_too_many(self, model: str) -> None:
        in_a_row, most = self._skipped_in_a_row[model], self._config.learner.max_skipped
        if in_a_row > most:
            optimizer = "learner.optimizer.lr" if model == "policy" else "critic.optimizer.lr"
            raise NonFiniteError(
                f"{in_a_row} steps of the {model} in a row had a loss or gradients that are not finite "
                f"(learner.max_skipped={most}), the last at version {self._version}: "
                f"lower {optimizer} or staleness.depth; a resume goes on from the newest checkpoint, if any"
            )
