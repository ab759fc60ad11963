"""Whoever shows and keeps what happens in a fine-tuning: view, metrics, summary.

Owns the names under which its numbers are kept. Knows no process.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from async_rl.checkpoints import SftState
from async_rl.config.schema import SftConfig
from async_rl.sft_summary import BestValidation, SftSummary, SftSummaryBuilder
from async_rl.summary import Exit
from async_rl.terminal.sft_status import SftStatus, Step
from async_rl.terminal.sft_view import SftView
from async_rl.tracking.record import Record
from async_rl.tracking.sink import MetricsSink
from learner.sft_events import Began, Checkpointed, Said, SftEvent, Stepped, Validated


class SftWatcher:
    """Takes events, from one thread."""

    def __init__(
        self,
        config: SftConfig,
        state: SftState,
        *,
        view: SftView,
        sink: MetricsSink,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._view = view
        self._sink = sink
        self._clock = clock
        self._launched_s = self._began_s = self._last_s = clock()
        self._status = SftStatus(
            name=config.name,
            step=state.version,
            first_step=state.version,
            steps=config.steps,
            elapsed_s=0.0,
            best_step=state.best_step,
            best_loss=state.best_loss,
        )
        self._summary = SftSummaryBuilder(
            steps=state.version,
            trained_tokens=state.trained_tokens,
            best=BestValidation(loss=state.best_loss, step=state.best_step or None),
        )

    def tell(self, event: SftEvent) -> None:
        """Shows and keeps it."""
        self._last_s = self._clock()
        match event:
            case Said():
                self._view.say(event.message)
            case Began():
                self._began_s = self._last_s
                held_out = f", {event.num_held_out:,} held out" if event.num_held_out else ""
                self._view.say(f"Training on {event.num_examples:,} rows{held_out}.")
                self._status = replace(self._status, num_ranks=event.num_ranks)
            case Stepped():
                self._stepped(event)
            case Validated():
                self._validated(event)
            case Checkpointed():
                times = {"sft/checkpoint_s": event.stood_s, "sft/checkpoint_write_s": event.write_s}
                self._write(event.step, times)
                self._show(replace(self._status, checkpoint=event.folder))
            case _:
                assert_never(event)

    def summary(self, exit_: Exit) -> SftSummary:
        """summary.json's content."""
        return self._summary.build(exit_, wall_s=self._last_s - self._began_s)

    def close(self) -> None:
        """Everything written can be read afterwards. May be called twice."""
        self._view.close()
        self._sink.close()

    def _stepped(self, event: Stepped) -> None:
        result = event.result
        step = Step(
            loss=result.loss,
            grad_norm=result.grad_norm,
            lr=result.lr,
            tokens_per_s=event.num_tokens / event.step_s,
            mfu=event.mfu,
            memory_gib=event.memory_gib,
        )
        self._summary.stepped(
            loss=result.loss,
            num_tokens=event.num_tokens,
            num_learned=event.num_learned,
            step_s=event.step_s,
            mfu=event.mfu,
            memory_gib=event.memory_gib,
        )
        scalars = {
            "sft/loss": result.loss,
            "sft/grad_norm": result.grad_norm,
            "sft/lr": result.lr,
            "sft/skipped": float(result.skipped),
            "sft/step_s": event.step_s,
            "sft/tokens": float(event.num_tokens),
            "sft/learned_tokens": float(event.num_learned),
            "sft/tokens_per_s": step.tokens_per_s,
            "sft/imbalance": event.imbalance,
            "sft/mfu": event.mfu,
            "sft/memory_gib": event.memory_gib,
        }
        self._write(event.step, scalars)
        self._show(replace(self._status, step=event.step, last=step, losses=self._summary.losses))

    def _validated(self, event: Validated) -> None:
        self._summary.validated(loss=event.loss, best_step=event.best_step, best_loss=event.best_loss)
        self._write(event.step, {"sft/validation_loss": event.loss})
        validations = self._summary.validations
        self._show(replace(self._status, validations=validations, best_step=event.best_step, best_loss=event.best_loss))

    def _show(self, status: SftStatus) -> None:
        self._status = replace(
            status, elapsed_s=self._last_s - self._launched_s, training_s=self._last_s - self._began_s
        )
        self._view.update(self._status)

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        self._sink.write([Record(step=step, time_s=time.time(), scalars=scalars)])
