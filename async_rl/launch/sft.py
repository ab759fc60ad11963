"""A warm start from start to end, in this process: folder, log, metrics, progress.

Owns what the user sees and keeps of it. The training itself is the learner's.
"""

import time
from pathlib import Path

from rich.console import Console

from async_rl.config.compose import dump_config
from async_rl.config.option import plain_values
from async_rl.config.schema import SftConfig
from async_rl.launch.process import log_to
from async_rl.run_folder import RunFolder
from async_rl.terminal.sft_view import SftView
from async_rl.tracking.record import Record
from async_rl.tracking.sink import MetricsSink
from learner.backend import StepResult
from learner.sft_process import run_sft

LOG_NAME = "sft.log"


def launch_sft(config: SftConfig, *, console: Console) -> None:
    """Trains, shows progress, and writes the model to `config.output`.

    Raises:
        UserError: data, task or model cannot be used.
        RunError: the loss is not finite in one step after the other.
    """
    folder = RunFolder(Path(config.runs_dir).absolute() / config.name)
    with folder.locked():
        _train(config, folder, console)


def _train(config: SftConfig, folder: RunFolder, console: Console) -> None:
    folder.set_aside()
    folder.create()
    folder.config.write_text(dump_config(config), encoding="utf-8")
    log_to(folder.logs / LOG_NAME)
    sink = MetricsSink(
        metrics=folder.metrics,
        aim_repo=Path(config.tracking.aim_repo or config.runs_dir).absolute() if config.tracking.aim else None,
        name=config.name,
        params=plain_values(config),
        run_hash=None,
    )
    folder.keep_aim_run(sink.run_hash())
    watcher = SftWatcher(SftView(console, steps=config.steps), sink)
    try:
        run_sft(config, run_folder=folder.path, observer=watcher)
    finally:
        watcher.close()
    console.print(f"The model is in {config.output}", highlight=False, soft_wrap=True)


class SftWatcher:
    """Shows and keeps each step; an `SftObserver`."""

    def __init__(self, view: SftView, sink: MetricsSink) -> None:
        self._view = view
        self._sink = sink
        self._last_s = time.perf_counter()

    def said(self, message: str) -> None:
        """Something that the user should read."""
        self._view.say(message)

    def stepped(self, step: int, result: StepResult, num_tokens: int) -> None:
        """An optimizer step is done."""
        now_s = time.perf_counter()
        tokens_per_s, self._last_s = num_tokens / (now_s - self._last_s), now_s
        self._view.stepped(step, loss=result.loss, lr=result.lr, tokens_per_s=tokens_per_s)
        self._write(
            step,
            {
                "sft/loss": result.loss,
                "sft/grad_norm": result.grad_norm,
                "sft/lr": result.lr,
                "sft/skipped": float(result.skipped),
                "sft/tokens_per_s": tokens_per_s,
            },
        )

    def validated(self, step: int, loss: float) -> None:
        """The loss on held-out pairs."""
        self._view.validated(step, loss)
        self._write(step, {"sft/validation_loss": loss})

    def close(self) -> None:
        """Everything written can be read afterwards."""
        self._view.close()
        self._sink.close()

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        self._sink.write([Record(step=step, time_s=time.time(), scalars=scalars)])
