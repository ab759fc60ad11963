"""Snapshots of a run for tests of the views."""

from async_rl.ledger import Counts
from async_rl.terminal.status import EvaluationRow, GeneratorRow, LearnerRow, RunStatus

COUNTS = Counts(issued=100, trained=64, stale=0, filtered=2, failed=1, queued=1, leased=20, delivered=12, batched=0)


def starting(elapsed_s: float = 3.0) -> RunStatus:
    return RunStatus(name="it", phase="starting", version=0, steps=100, elapsed_s=elapsed_s)


def training(version: int = 30, elapsed_s: float = 80.0) -> RunStatus:
    return RunStatus(
        name="it",
        phase="training",
        version=version,
        steps=100,
        elapsed_s=elapsed_s,
        training_s=60.0,
        generators=(
            GeneratorRow(name="generator-0", version=29, running=64, tokens_per_s=1800.0, idle_share=0.02),
            GeneratorRow(name="generator-1", version=None, running=0, tokens_per_s=0.0, idle_share=1.0),
        ),
        learner=LearnerRow(step_s=1.5, tokens_per_s=1700.0, idle_share=0.12, loss=-0.0123, grad_norm=0.84),
        staleness=(10, 80, 10),
        staleness_bound=4,
        rewards=(0.25, 0.5, 0.75),
        evaluation=EvaluationRow(version=0, reward=0.31, greedy=None),
        counts=COUNTS,
        checkpoint="runs/it/checkpoints/00000020",
    )
