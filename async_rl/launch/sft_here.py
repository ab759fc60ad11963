"""Fine-tuning in this process, one of torchrun's or the only one.

Owns which of these processes prepares, shows and writes: rank 0, whom the others hear once they have met.
"""

from rich.console import Console

from async_rl.config.schema import SftConfig
from async_rl.launch.process import log_to
from async_rl.launch.sft_run import watch
from async_rl.launch.start import Resume, folder_of
from async_rl.launch.stop_request import StopRequest
from async_rl.summary import Exit
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground
from learner.place import Place
from learner.sft_events import Tell
from learner.sft_process import run_sft
from learner.sft_start import SftStart


def train_here(config: SftConfig, place: Place, *, resume: Resume, console: Console) -> Exit:
    """See `launch_sft`."""
    with Ground(config.parallel, place, seed=config.seed, num_threads=config.num_threads) as ground:
        if place.rank == 0:
            return _speak(config, resume, console, ground, place)
        return _follow(config, ground, place)


def _speak(config: SftConfig, resume: Resume, console: Console, ground: Ground, place: Place) -> Exit:
    mesh, is_told = MegatronMesh(), False

    def train(start: SftStart, tell: Tell, stop: StopRequest) -> Exit:
        nonlocal is_told
        is_told = True
        mesh.hear(start)
        return run_sft(
            config,
            start,
            ground,
            place,
            tell=tell,
            is_stopping=lambda: stop.is_made,
            wants_checkpoint=stop.take_wish,
        )

    try:
        with folder_of(config).locked():
            return watch(config, resume, console, train)
    finally:
        if not is_told:
            mesh.hear(None)


def _follow(config: SftConfig, ground: Ground, place: Place) -> Exit:
    """A rank that only trains."""
    stop = StopRequest(lambda message: None)
    start: SftStart | None = MegatronMesh().hear(None)
    if start is None:
        # Whoever speaks says why.
        return Exit.FAILED
    log_to(start.folder.logs / f"rank-{place.rank}.log")
    stop.has_begun()
    with stop.listening():
        return run_sft(
            config,
            start,
            ground,
            place,
            tell=lambda event: None,
            is_stopping=lambda: stop.is_made,
            wants_checkpoint=stop.take_wish,
        )
