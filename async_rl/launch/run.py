"""One run from start to end: everything is found, started, connected, and afterwards gone.

    preflight ─► folder (new, or resumed from its newest checkpoint) ─► port ─► Ray ─► tracker, generators, learner
              ─► controller.run ─► summary.json, the page, and no process or shared memory left

Owns this order, signals, and the exit code. Decides nothing about groups or weights.
"""

import asyncio
import logging
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

from ray.exceptions import RayError
from rich.console import Console

from async_rl.channel.controller_socket import ControllerSocket
from async_rl.checkpoints import Checkpoints
from async_rl.config.option import plain_values
from async_rl.config.schema import RunConfig
from async_rl.controller.controller import Controller, Phase
from async_rl.controller.dealer import Dealer
from async_rl.controller.telemetry import Telemetry
from async_rl.coordinator import Coordinator
from async_rl.data.sampler import PromptSampler
from async_rl.disk import writing
from async_rl.errors import RunError
from async_rl.journal import Journal
from async_rl.launch import preflight
from async_rl.launch.cluster import Cluster
from async_rl.launch.deaths import account, ending
from async_rl.launch.process import interrupts_heard, libraries_in, log_to, take_interrupts
from async_rl.launch.semaphores import remove_semaphores, remove_stale_semaphores
from async_rl.launch.start import Resume, Start, begin, folder_of, say
from async_rl.launch.supervision import Supervisor
from async_rl.run_folder import RunFolder
from async_rl.sizing.flops import ModelFlops
from async_rl.sizing.model_json import read_sizes
from async_rl.staleness import StalenessGate
from async_rl.summary import Exit, Summary, SummaryBuilder
from async_rl.terminal.summary_page import Places, summary_page
from async_rl.terminal.view import View, open_view
from async_rl.trained_log import TrainedLog
from async_rl.weights.slots import remove_stale
from async_rl.weights.transports import remove_published

logger = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 20.0
"""For processes that were told to end."""
ABANDON_TIMEOUT_S = 3.0
"""The same where the run has failed or is stopped at once: nothing that they still do is wanted."""


def launch(config: RunConfig, *, resume: Resume, console: Console) -> Exit:
    """Runs a config to its end.

    Raises:
        UserError: found before anything starts, or raised by any process.
        RunError: the run could not go on; its folder has the logs and the last checkpoint.
    """
    began_s = time.monotonic()
    take_interrupts()
    remove_stale()
    remove_stale_semaphores()
    with interrupts_heard():
        found = preflight.check(config)
    with folder_of(config).locked():
        return _launch(config, resume=resume, console=console, found=found, began_s=began_s)


def _launch(config: RunConfig, *, resume: Resume, console: Console, found: preflight.Preflight, began_s: float) -> Exit:
    start = begin(config, resume, console)
    log_to(start.folder.logs / "controller.log")
    for message in found.messages:
        say(console, message)
    view = open_view(console)
    run = Run(config, start=start, found=found, view=view, began_s=began_s)
    try:
        with libraries_in(start.folder.logs / "controller.log", console):
            exit_ = asyncio.run(run.serve())
    finally:
        view.close()
    page = summary_page(run.summary(exit_), places(config, start.folder), staleness_bound=config.staleness.max)
    console.print(page)
    return exit_


def places(config: RunConfig, folder: RunFolder) -> Places:
    """Where everything that a run made lies."""
    checkpoint = Checkpoints(folder.checkpoints, config.checkpoint.keep).latest
    return Places(
        run=str(folder.path),
        checkpoint=str(checkpoint or ""),
        model=str(folder.model) if folder.model.is_dir() else "",
        dashboard=f"async-rl dashboard --repo {aim_repo(config)}" if config.tracking.aim else "",
    )


def aim_repo(config: RunConfig) -> Path:
    """The folder of the run's Aim repository."""
    return Path(config.tracking.aim_repo or config.runs_dir).absolute()


class Run:
    """What lives from the first process to the last."""

    def __init__(
        self, config: RunConfig, *, start: Start, found: preflight.Preflight, view: View, began_s: float
    ) -> None:
        self._config = config
        self._start = start
        self._found = found
        self._view = view
        self._began_s = began_s
        self._id = f"{config.name}-{os.getpid()}"
        self._summary = SummaryBuilder(trained_tokens=start.trained_tokens, version=start.version)
        self._journal = Journal(start.folder.journal)
        self._trained_log = TrainedLog(start.folder.trained)
        self._trained_log.forget_from(start.version)
        self._coordinator = self._make_coordinator()
        self._signals = 0

    async def serve(self) -> Exit:
        """Starts everything, waits for the end, leaves nothing behind."""
        exit_ = Exit.FAILED
        async with AsyncExitStack() as cleanup:
            cleanup.callback(
                remove_published, self._config.weights, run_id=self._id, run_folder=self._start.folder.path
            )
            cleanup.callback(remove_semaphores, self._id)
            socket = self._bind()
            cleanup.callback(socket.close)
            cluster = Cluster(self._config, self._start.folder, run_id=self._id)
            cleanup.push_async_callback(asyncio.to_thread, cluster.stop)
            try:
                self._view.say("Starting Ray, generators and learner; engines need from 10 seconds to a minute.")
                # In the main thread, since Ray sets signal handlers; ours replace them afterwards.
                cluster.start()
                exit_ = await self._control(socket, cluster)
            except (asyncio.CancelledError, Interrupted):
                # Cancelled: Ctrl-C before our signal handlers were in place.
                exit_ = Exit.STOPPED
                self._view.say("Stopping at once: ending every process.")
                raise
            finally:
                self._write_summary(exit_)
        return exit_

    def summary(self, exit_: Exit) -> Summary:
        """summary.json's content."""
        return self._summary.build(self._coordinator.counts, exit_)

    async def _control(self, socket: ControllerSocket, cluster: Cluster) -> Exit:
        config, state = self._config, self._start.state
        telemetry = Telemetry(
            config,
            summary=self._summary,
            view=self._view,
            write=cluster.sink.write,
            refused_frames=lambda: socket.refusals.total(),
            trained_log=self._trained_log,
            run_hash=await self._open_tracker(cluster),
            version=self._start.version,
            now_s=time.monotonic(),
        )
        controller = Controller(
            config,
            coordinator=self._coordinator,
            dealer=Dealer.of(config, ModelFlops.of(read_sizes(Path(config.model.path)))),
            peers=socket,
            journal=self._journal,
            checkpoints=Checkpoints.of(self._start.folder.checkpoints, config.checkpoint),
            prompts=PromptSampler(self._found.prompts, seed=config.seed, shuffle=config.data.shuffle),
            held_out=self._found.held_out,
            observer=telemetry,
            clock=time.monotonic,
            trained_tokens=self._start.trained_tokens,
            next_evaluation_id=state.next_evaluation_id if state else 0,
            began_s=self._began_s,
        )
        supervisor = Supervisor(
            controller,
            generator_restarts=config.generation.max_restarts,
            learner_restarts=config.learner.max_restarts,
            folder=self._start.folder.path,
        )
        self._listen_for_signals(controller)
        scores = await self._start_reward_model(cluster, supervisor)
        for name, actor in cluster.generators.items():
            supervisor.watch_generator(name, actor, socket.address, scores)
        supervisor.watch_learner(cluster.learner, socket.address, self._start.checkpoint)
        supervisor.watch_tracker(lambda: cluster.sink.follow(controller.report))
        leave_timeout_s = ABANDON_TIMEOUT_S
        try:
            await controller.run()
            leave_timeout_s = LEAVE_TIMEOUT_S
        finally:
            await supervisor.release(leave_timeout_s)
            telemetry.flush()
            await cluster.sink.close()
        return Exit.COMPLETED if self._coordinator.version >= config.steps else Exit.STOPPED

    async def _start_reward_model(self, cluster: Cluster, supervisor: Supervisor) -> str | None:
        """Where generators get scores, if there is a reward model: ready before anybody asks.

        Raises:
            UserError: the model cannot be used.
            RunError: its process died.
        """
        if cluster.reward_model is None:
            return None
        try:
            address: str = await cluster.reward_model.open.remote()
        except RayError as error:
            name = "the reward model"
            raise ending(name, error, self._start.folder.path) or RunError(account(name, error)) from error
        restarts = self._config.reward.model.max_restarts
        supervisor.watch_reward_model(cluster.reward_model, address, max_restarts=restarts)
        return f"tcp://{address}"

    async def _open_tracker(self, cluster: Cluster) -> str | None:
        """Opens the sink, and keeps Aim's name of the run beside its metrics."""
        state, tracking = self._start.state, self._config.tracking
        run_hash = await cluster.sink.open(
            aim_repo=aim_repo(self._config) if tracking.aim else None,
            name=self._config.name,
            params=plain_values(self._config),
            run_hash=state.run_hash if state else None,
        )
        self._start.folder.keep_aim_run(run_hash)
        if tracking.aim and run_hash is None:
            self._view.say(
                "Aim cannot be written: this run has no dashboard, only metrics.jsonl (why: logs/tracker.log)."
            )
        return run_hash

    def _bind(self) -> ControllerSocket:
        channel = self._config.channel
        return ControllerSocket(
            channel.host, channel.port, max_message_bytes=channel.max_message_mib << 20, epoch=self._id
        )

    def _make_coordinator(self) -> Coordinator:
        config, state = self._config, self._start.state
        gate = StalenessGate(
            max=config.staleness.max,
            depth=config.staleness.depth,
            groups_per_step=config.learner.groups_per_step,
            steps=config.steps,
        )
        over_bound, attempts = config.staleness.over_bound, config.ledger.max_attempts
        if state is None:
            return Coordinator.create(gate, over_bound, max_attempts=attempts)
        return Coordinator.restore(
            gate,
            over_bound,
            max_attempts=attempts,
            version=state.version,
            snapshot=state.ledger,
            journal=self._journal.load(state.version),
        )

    def _listen_for_signals(self, controller: Controller) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, controller, number)
        loop.add_signal_handler(signal.SIGUSR1, controller.checkpoint_soon)

    def _on_signal(self, controller: Controller, number: signal.Signals) -> None:
        """The first asks for an end with a checkpoint, if there is anything to keep; the second does not wait."""
        self._signals += 1
        if self._signals == 1 and controller.phase is not Phase.STARTING:
            controller.stop(f"{number.name}; once more stops at once")
        else:
            controller.fail(Interrupted("stopped at once"))

    def _write_summary(self, exit_: Exit) -> None:
        path = self._start.folder.summary
        with writing("the summary", path):
            path.write_bytes(self.summary(exit_).to_json())


class Interrupted(RunError):
    """The user asked twice for an end, or before anything was trained."""
