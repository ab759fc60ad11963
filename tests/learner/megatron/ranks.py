"""A few ranks of a learner for one test: forked from the test's process, which has paid for importing Megatron.

    def losses(place: Place, folder: Path) -> list[float]: ...

    losses_by_rank = run_ranks(2, losses, folder)

The function runs in every rank with its place, makes its own `Ground`, and returns what can be pickled. A rank that
raises, dies or hangs ends the test with what it said, or with the lines where it stood.
"""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Concatenate, Generic, ParamSpec, TypeVar, cast

import torch.distributed as dist

from learner.place import Place

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

TIMEOUT_S = 120.0
"""Of all ranks together: far more than a case takes on a loaded machine."""
_GRACE_S = 3.0
"""That the others have once a rank has failed, to say what became of them."""

_fork = multiprocessing.get_context("fork")


def run_ranks(
    world_size: int,
    function: Callable[Concatenate[Place, _Arguments], _Result],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> list[_Result]:
    """What the function returned in each rank, in their order; an `AssertionError` where one of them did not return."""
    assert not dist.is_initialized(), "a forked rank cannot use its parent's process groups: close the Ground first"
    # Groups in reference cycles end here, with their threads: a rank that collected them would wait for threads that
    # are not its own.
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            _start(
                Place(rank=rank, world_size=world_size, rendezvous=f"file://{folder}/meeting"),
                Path(folder, f"stack-{rank}"),
                lambda place: function(place, *args, **kwargs),
            )
            for rank in range(world_size)
        ]
        try:
            _listen(ranks, time.monotonic() + TIMEOUT_S)
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.join()
    complaints = [f"rank {rank.place.rank}: {rank.complaint}" for rank in ranks if rank.complaint]
    assert not complaints, "\n".join(complaints)
    return [cast(_Result, rank.result) for rank in ranks]


@dataclass
class _Rank(Generic[_Result]):
    place: Place
    process: BaseProcess
    mouth: Connection
    stack: Path
    """Where it writes the lines it stands at when it is asked with SIGUSR1."""
    result: _Result | None = field(default=None)
    complaint: str = ""


def _start(place: Place, stack: Path, function: Callable[[Place], _Result]) -> _Rank[_Result]:
    ear, mouth = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_run, args=(place, stack, function, mouth), daemon=True)
    process.start()
    mouth.close()
    return _Rank(place=place, process=process, mouth=ear, stack=stack)


def _run(place: Place, stack: Path, function: Callable[[Place], object], mouth: Connection) -> None:
    # What the parent's earlier tests made may hold process groups, whose threads were not forked: to collect one hangs.
    gc.freeze()
    with stack.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file)
        try:
            # Plain pickle: torch's own way through a pipe needs the sender to stay.
            said = pickle.dumps((function(place), ""))
        # A test's process ends here, whatever ended it.
        except BaseException:
            said = pickle.dumps((None, traceback.format_exc()))
        mouth.send_bytes(said)


def _listen(ranks: Sequence[_Rank[_Result]], deadline: float) -> None:
    """Until all have spoken, or one has failed and the others had their time, or it is too late."""
    silent = {rank.mouth: rank for rank in ranks}
    while silent and (ready := wait(list(silent), timeout=max(0.0, deadline - time.monotonic()))):
        for mouth in ready:
            rank = silent.pop(cast(Connection, mouth))
            try:
                rank.result, rank.complaint = pickle.loads(rank.mouth.recv_bytes())
            except EOFError:
                rank.process.join()
                rank.complaint = f"died with exit code {rank.process.exitcode}"
            if rank.complaint:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    for rank in silent.values():
        rank.complaint = f"did not end; it stood at\n{_where(rank)}"


def _where(rank: _Rank[_Result]) -> str:
    assert rank.process.pid is not None
    os.kill(rank.process.pid, signal.SIGUSR1)
    for _ in range(20):
        time.sleep(0.05)
        if said := rank.stack.read_text():
            return said
    return "a place that it does not tell"
