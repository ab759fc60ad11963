"""A fine-tuning as its user sees and keeps it: folder, log, metrics, progress, summary.

Owns the order of these around the training, which is handed in. Loads neither Megatron nor Ray.
"""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from async_rl.checkpoints import Checkpoints, SftState, read_state
from async_rl.config.option import plain_values
from async_rl.config.parallel_rules import check_layout_sizes
from async_rl.config.schema import SftConfig
from async_rl.disk import writing
from async_rl.errors import DamagedCheckpoint
from async_rl.launch.process import log_to
from async_rl.launch.sft_watcher import SftWatcher
from async_rl.launch.start import Resume, begin_sft, folder_of
from async_rl.launch.stop_request import StopRequest
from async_rl.readiness import check_model_folder
from async_rl.run_folder import RunFolder
from async_rl.sizing.model_json import check_given, read_sizes
from async_rl.sizing.sft import check_sft_fit
from async_rl.summary import Exit
from async_rl.terminal.sft_view import open_sft_view
from async_rl.terminal.summary_page import Places, sft_summary_page
from async_rl.tracking.sink import MetricsSink
from learner.sft_events import Began, SftEvent, Tell
from learner.sft_start import SftStart, make_model

LOG_NAME = "sft.log"
NEW_MODEL = "new_model"
"""Folder, in the run's, of a model that was made for it."""

Train = Callable[[SftStart, Tell, StopRequest], Exit]
"""(start, tell, stop) → how it ended: whoever has the ranks train."""


def watch(config: SftConfig, resume: Resume, console: Console, train: Train) -> Exit:
    """Prepares the run's folder, has it trained, and shows and keeps what it is told."""
    began_s = time.time()
    folder = folder_of(config)
    checkpoint = begin_sft(config, resume, console)
    log_to(folder.logs / LOG_NAME)
    state = SftState(version=0, trained_tokens=0, run_hash=None)
    if checkpoint is not None:
        state = read_state(checkpoint, SftState)
    sink = _open_sink(config, folder, state.run_hash)
    view = open_sft_view(console)
    watcher, stop = SftWatcher(config, state, view=view, sink=sink), StopRequest(view.say)

    def tell(event: SftEvent) -> None:
        if isinstance(event, Began):
            stop.has_begun()
        watcher.tell(event)

    exit_ = Exit.FAILED
    try:
        with stop.listening():
            model = make_model(config, folder.path / NEW_MODEL)
            check_model(config, model)
            start = SftStart(
                folder=folder, model=model, checkpoint=checkpoint, run_hash=sink.run_hash(), began_s=began_s
            )
            exit_ = train(start, tell, stop)
    except DamagedCheckpoint:
        assert checkpoint is not None
        # So that the remedy is true: whoever resumes again gets the one before.
        Checkpoints.of(folder.checkpoints, config.checkpoint).pass_over(checkpoint)
        raise
    except KeyboardInterrupt:
        exit_ = Exit.STOPPED
        raise
    finally:
        watcher.close()
        summary = watcher.summary(exit_)
        with writing("the summary", folder.summary):
            folder.summary.write_bytes(summary.to_json())
    console.print(sft_summary_page(summary, _places(config, folder, exit_)))
    return exit_


def check_model(config: SftConfig, model: Path) -> None:
    """Raises a `UserError` where there is no model, or the ranks cannot share or hold it."""
    check_model_folder(model)
    sizes = read_sizes(model)
    check_given(config.model.sizes, sizes, model)
    check_layout_sizes(config.parallel, sizes, "parallel")
    check_sft_fit(config, sizes)


def _open_sink(config: SftConfig, folder: RunFolder, run_hash: str | None) -> MetricsSink:
    sink = MetricsSink(
        metrics=folder.metrics,
        aim_repo=_aim_repo(config) if config.tracking.aim else None,
        name=config.name,
        params=plain_values(config),
        run_hash=run_hash,
    )
    folder.keep_aim_run(sink.run_hash())
    return sink


def _aim_repo(config: SftConfig) -> Path:
    return Path(config.tracking.aim_repo or config.runs_dir).absolute()


def _places(config: SftConfig, folder: RunFolder, exit_: Exit) -> Places:
    checkpoint = Checkpoints(folder.checkpoints, config.checkpoint.keep).latest
    return Places(
        run=str(folder.path),
        checkpoint=str(checkpoint or ""),
        model=config.output if exit_ is Exit.COMPLETED else "",
        dashboard=f"async-rl dashboard --repo {_aim_repo(config)}" if config.tracking.aim else "",
    )
