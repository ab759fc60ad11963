"""A fine-tuning on a terminal and elsewhere."""

import io
from dataclasses import replace

from rich.console import Console

from async_rl.terminal.sft_status import SftStatus, Step
from async_rl.terminal.sft_view import open_sft_view

STEP = Step(loss=0.5, grad_norm=2.0, lr=1e-3, tokens_per_s=12345.0, mfu=0.41, memory_gib=3.25)
STATUS = SftStatus(
    name="it",
    step=30,
    steps=100,
    elapsed_s=80.0,
    training_s=60.0,
    num_ranks=4,
    last=STEP,
    losses=(1.0, 0.75, 0.5),
    validations=(0.7, 0.6),
    best_step=20,
    best_loss=0.6,
    checkpoint="runs/it/checkpoints/00000020",
)


def test_a_terminal_shows_curves_speed_and_what_is_left() -> None:
    stream = io.StringIO()
    view = open_sft_view(Console(file=stream, width=110, height=40, force_terminal=True, _environ={"TERM": "xterm"}))
    view.update(STATUS)
    view.close()
    for words in (
        "async-rl sft",
        "step 30/100",
        "left 2:20",
        "█▅▁",
        "0.6000 (best 0.6000 at step 20)",
        "12,345 tokens/s  MFU 41.0%  4 ranks, 3.2 GiB at most",
        "00000020",
    ):
        assert words in stream.getvalue()


def test_elsewhere_lines_come_with_steps_but_not_faster_than_one_reads() -> None:
    stream = io.StringIO()
    view = open_sft_view(Console(file=stream, width=40))
    for step, elapsed_s in ((30, 80.0), (30, 90.0), (31, 80.5), (32, 82.5), (100, 82.6)):
        view.update(replace(STATUS, step=step, elapsed_s=elapsed_s))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines if "validation" not in line] == ["30/100", "32/100", "100/100"]
    assert [line for line in lines if "validation" in line] == ["step 30/100  validation loss 0.6000"]
