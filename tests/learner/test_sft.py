"""Fine-tuning: only what is learned has a gradient, no split changes a step, and a resumed run is the same run."""

import math
import time
from pathlib import Path

import pytest
import torch

from async_rl.checkpoints import Checkpoints, SftState, read_state
from async_rl.config.loop import CheckpointConfig
from async_rl.config.schema import SftConfig
from async_rl.data.example_set import Example
from async_rl.errors import NonFiniteError
from async_rl.summary import Exit
from async_rl.walltime import Walltime
from learner.mesh import SingleRank
from learner.sft import MAX_SKIPPED, SftTrainer
from learner.sft_events import Checkpointed, SftEvent, Stepped, Validated
from tests.learner.bigram_backend import BigramBackend
from tests.learner.test_sft_batch import SIZES, example

EXAMPLES = [
    example([3, 4, 5, 1], "0011"),
    example([6, 7, 1, 3, 8], "01100"),
    example([2, 8, 9, 10, 1], "00011"),
]
LEARNED = [(4, 5), (5, 1), (6, 7), (7, 1), (9, 10), (10, 1)]
"""(token before, learned token)"""
NEW = SftState(version=0, trained_tokens=0, run_hash="abc")


class Notes:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[SftEvent] = []

    def tell(self, event: SftEvent) -> None:
        self.events.append(event)

    @property
    def steps(self) -> list[Stepped]:
        return [event for event in self.events if isinstance(event, Stepped)]

    @property
    def validations(self) -> list[Validated]:
        return [event for event in self.events if isinstance(event, Validated)]

    @property
    def checkpoints(self) -> list[int]:
        return [event.step for event in self.events if isinstance(event, Checkpointed)]


class Run:
    """A trainer on a bigram model."""

    def __init__(
        self,
        folder: Path,
        *,
        state: SftState = NEW,
        lr: float = 0.5,
        stop_after: int | None = None,
        checkpoint: CheckpointConfig | None = None,
        walltime: Walltime | None = None,
        asked_after: int | None = None,
        **options: int,
    ) -> None:
        config = SftConfig(
            **{"steps": 40, "batch_size": 2, "validate_every": 15, "micro_batch_tokens": 8} | options,  # type: ignore[arg-type]
            checkpoint=checkpoint or CheckpointConfig(every=0),
        )
        self.backend, self.notes = BigramBackend(lr=lr), Notes()
        self.trainer = SftTrainer(
            config,
            backend=self.backend,
            mesh=SingleRank(),
            sizes=SIZES,
            state=state,
            checkpoints=Checkpoints.of(folder, config.checkpoint),
            tell=self.notes.tell,
            walltime=walltime or Walltime(limit_s=0.0, began_s=0.0),
            is_stopping=lambda: len(self.notes.steps) == stop_after,
            wants_checkpoint=lambda: len(self.notes.steps) == asked_after,
            peak_flops=1e15,
        )

    def train(self, held_out: list[Example] | None = None) -> Exit:
        return self.trainer.train(EXAMPLES, held_out or [])


def test_the_validation_loss_is_the_mean_over_learned_tokens(tmp_path: Path) -> None:
    run = Run(tmp_path)
    log_p = torch.log_softmax(run.backend.table.detach(), 1)
    expected = -sum(float(log_p[before, token]) for before, token in LEARNED) / len(LEARNED)
    assert run.trainer.validation_loss(EXAMPLES) == pytest.approx(expected, rel=1e-5)


def test_only_learned_tokens_have_a_gradient(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=1, batch_size=3)
    run.train()
    assert (run.backend.gradient.abs().sum(1) > 0).tolist() == [n in {4, 5, 6, 7, 9, 10} for n in range(12)]


@pytest.mark.parametrize("max_tokens", [5, 9, 100])
def test_no_split_into_micro_batches_changes_the_step(tmp_path: Path, max_tokens: int) -> None:
    run, expected = (
        Run(tmp_path / str(budget), steps=1, batch_size=3, micro_batch_tokens=budget) for budget in (max_tokens, 14)
    )
    assert run.train() is expected.train() is Exit.COMPLETED
    assert run.notes.steps[0].result.loss == pytest.approx(expected.notes.steps[0].result.loss, abs=1e-7)
    torch.testing.assert_close(run.backend.gradient, expected.backend.gradient, rtol=0, atol=1e-7)


def test_it_learns_and_is_validated_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path, lr=2.0)
    run.train(EXAMPLES)
    assert [event.step for event in run.notes.validations] == [15, 30, 40]
    assert run.notes.validations[-1].loss < 0.3 < run.notes.steps[0].result.loss
    last = run.notes.validations[-1]
    assert (last.best_step, last.best_loss) == (40, last.loss)


def test_the_best_validation_is_kept_through_worse_ones(tmp_path: Path) -> None:
    before = SftState(version=0, trained_tokens=0, run_hash=None, best_step=7, best_loss=0.0)
    run = Run(tmp_path, state=before, steps=15)
    run.train(EXAMPLES)
    assert (run.notes.validations[0].best_step, run.notes.validations[0].best_loss) == (7, 0.0)


def test_a_step_says_what_it_took(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=1, batch_size=3)
    run.train()
    (step,) = run.notes.steps
    assert (step.step, step.num_tokens, step.num_learned) == (1, 14, 6)
    assert step.step_s > 0 and step.memory_gib > 0 and step.imbalance >= 1
    assert 0 < step.mfu < 1


def test_checkpoints_come_now_and_then_and_at_the_end_and_the_newest_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=11, checkpoint=CheckpointConfig(every=3, keep=2))
    run.train(EXAMPLES)
    assert run.notes.checkpoints == [3, 6, 9, 11]
    assert Checkpoints(tmp_path, keep=2).versions() == [9, 11]
    state = read_state(tmp_path / "00000011", SftState)
    assert (state.version, state.run_hash, state.best_step) == (11, "abc", 11)
    assert state.trained_tokens == sum(event.num_learned for event in run.notes.steps)


def test_a_checkpoint_is_written_where_one_is_asked_for_and_the_run_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=5, asked_after=2)
    assert run.train() is Exit.COMPLETED
    assert run.notes.checkpoints == [2, 5]


def test_the_best_are_kept_by_their_validation_loss(tmp_path: Path) -> None:
    options = CheckpointConfig(every=2, keep=1, keep_best=1)
    run = Run(tmp_path, steps=12, validate_every=2, checkpoint=options)
    # Other answers to the same prompts: the better those of training are learned, the less likely are these.
    run.train([example([3, 4, 6, 2], "0011")])
    best = read_state(tmp_path / "best", SftState)
    assert best.version == best.best_step < 12
    assert Checkpoints(tmp_path, keep=1).versions() == [best.version, 12]


def test_the_run_stops_with_a_checkpoint_before_its_time_is_over(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=10**6, walltime=Walltime(limit_s=0.5, began_s=time.perf_counter()))
    assert run.train() is Exit.STOPPED
    assert run.notes.checkpoints == [len(run.notes.steps)]


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole", steps=11)
    whole.train(EXAMPLES)
    first = Run(tmp_path / "parts", steps=11, stop_after=4)
    assert first.train(EXAMPLES) is Exit.STOPPED
    checkpoint = Checkpoints(tmp_path / "parts", keep=2).latest
    assert checkpoint is not None
    second = Run(tmp_path / "parts", steps=11, state=read_state(checkpoint, SftState))
    second.trainer.load(checkpoint)
    assert second.train(EXAMPLES) is Exit.COMPLETED
    steps = [*first.notes.steps, *second.notes.steps]
    assert [event.result for event in steps] == [event.result for event in whole.notes.steps]
    assert [event.step for event in steps] == list(range(1, 12))
    assert torch.equal(second.backend.table, whole.backend.table)


def test_a_stop_ends_after_its_step_with_a_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, stop_after=2)
    assert run.train() is Exit.STOPPED
    assert len(run.notes.steps) == 2 and run.notes.checkpoints == [2]


def test_a_stop_in_the_last_step_is_no_stop(tmp_path: Path) -> None:
    assert Run(tmp_path, steps=2, stop_after=2).train() is Exit.COMPLETED


def test_a_loss_that_stays_not_finite_ends_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with torch.no_grad():
        run.backend.table[:] = math.nan
    with pytest.raises(NonFiniteError, match=r"lower optimizer\.lr"):
        run.train()
    assert len(run.notes.steps) == MAX_SKIPPED + 1
    assert all(event.result.skipped for event in run.notes.steps)


def test_steps_skipped_before_a_resumption_count(tmp_path: Path) -> None:
    state = SftState(version=3, trained_tokens=1, run_hash=None, skipped_in_a_row=MAX_SKIPPED)
    run = Run(tmp_path, state=state)
    with torch.no_grad():
        run.backend.table[:] = math.nan
    with pytest.raises(NonFiniteError):
        run.train()
    assert len(run.notes.steps) == 1
