"""What every process of a run does first: its log file, its cores, its end.

Owns the redirection of what libraries print, so that the user's terminal shows only what matters to them.
"""

import ctypes
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from rich.console import Console

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PR_SET_PDEATHSIG = 1


def set_up_process(name: str, logs: Path, *, cores: list[int] | None) -> None:
    """Sends all output of this process to `logs/NAME.log`, pins it, and ties its life to its parent's."""
    redirect_output(logs / f"{name}.log")
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr, force=True)
    logging.captureWarnings(True)
    warnings.simplefilter("default")
    if cores is not None:
        os.sched_setaffinity(0, cores)
    # A worker whose raylet was killed would otherwise hold its core and its memory for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.getLogger(__name__).info("%s is process %d on cores %s", name, os.getpid(), cores or "all")


def log_to(path: Path) -> None:
    """Sends this process's log and warnings to a file: the terminal belongs to the view."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, filename=path, force=True)
    logging.captureWarnings(True)


def take_interrupts() -> None:
    """Hears Ctrl-C even where a script started this process in its background, with SIGINT ignored.

    asyncio leaves an ignored signal alone, so one that came before our own handlers stand would be lost. A wish for a
    checkpoint that comes before there is anything to keep ends nothing.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interrupts_heard() -> Iterator[None]:
    """Raises KeyboardInterrupt at the end of the block where a Ctrl-C within it was swallowed.

    Imports of large libraries have broad excepts, and an interrupt in a destructor is only printed.
    """
    heard: list[int] = []

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


@contextmanager
def libraries_in(path: Path, console: Console) -> Iterator[None]:
    """Sends what libraries print in this process to a file, until the end of the block; the console keeps its place.

    Ray prints a page about every death; the supervisor tells the user in a line.
    """
    # A console without a file of its own would follow sys.stdout into the log.
    console.file = console.file
    with path.open("a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
        yield


def redirect_output(path: Path) -> None:
    """Points file descriptors 1 and 2 at a file: C++ and child processes write there too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
