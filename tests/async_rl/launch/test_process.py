"""What a process of a run does first, seen from outside, in processes of their own."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from async_rl.launch.process import interrupts_heard, libraries_in

SET_UP = """
import logging, os, subprocess, sys, warnings
from pathlib import Path
from async_rl.launch.process import set_up_process
set_up_process('generator-0', Path(sys.argv[1]), cores=[{core}])
"""


def run(program: str, logs: Path) -> subprocess.CompletedProcess[str]:
    core = min(os.sched_getaffinity(0))
    return subprocess.run(
        [sys.executable, "-c", SET_UP.format(core=core) + program, str(logs)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )


def test_what_libraries_print_is_in_a_file_and_the_console_keeps_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    with libraries_in(tmp_path / "log", console):
        print("a page of advice")
        print("another", file=sys.stderr)
        console.print("for the user")
    print("as ever")
    assert (tmp_path / "log").read_text() == "a page of advice\nanother\n"
    assert capsys.readouterr() == ("for the user\nas ever\n", "")


def test_a_ctrl_c_that_a_library_swallows_is_not_lost() -> None:
    # Ignored where the tests run in the background of a shell.
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts_heard():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except BaseException:
            pass  # as an import with a broad except does
    with interrupts_heard():
        pass
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("first", "code"), [("take_interrupts()", 130), ("pass", 0)])
def test_a_ctrl_c_is_heard_in_the_background_of_a_script(first: str, code: int) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from async_rl.launch.process import take_interrupts\n"
        f"{first}\n"
        "async def start():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(start())\n"
    )
    # A shell without job control ignores SIGINT for what it starts with `&`.
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(command)} & wait $!"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == code


def test_whatever_is_printed_is_in_its_log_and_nowhere_else(tmp_path: Path) -> None:
    done = run(
        "print('printed', flush=True)\n"
        "logging.getLogger('x').info('logged')\n"
        "warnings.warn('warned')\n"
        "subprocess.run(['sh', '-c', 'echo by a child >&2'])\n"
        "raise RuntimeError('raised')\n",
        tmp_path / "logs",
    )
    assert (done.stdout, done.stderr) == ("", "")
    log = (tmp_path / "logs" / "generator-0.log").read_text()
    for words in ("printed", "INFO x: logged", "warned", "by a child", "RuntimeError: raised"):
        assert words in log


def test_a_second_life_adds_to_the_log(tmp_path: Path) -> None:
    for life in ("first", "second"):
        run(f"print('{life}')", tmp_path)
    log = (tmp_path / "generator-0.log").read_text()
    assert log.count("generator-0 is process") == 2
    assert "first" in log and "second" in log


def test_it_has_the_cores_it_was_given(tmp_path: Path) -> None:
    run("print('cores', sorted(os.sched_getaffinity(0)))", tmp_path)
    assert f"cores [{min(os.sched_getaffinity(0))}]" in (tmp_path / "generator-0.log").read_text()


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    child = SET_UP.format(core=min(os.sched_getaffinity(0))) + "import time\nprint('ready', flush=True)\ntime.sleep(60)"
    log = tmp_path / "generator-0.log"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys\n"
            "child = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])\n"
            "print(child.pid, flush=True)\n"
            "child.wait()",
            child,
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    process = psutil.Process(pid)
    while not (log.exists() and "ready" in log.read_text()):
        assert process.is_running()
    parent.kill()
    parent.wait()
    process.wait(timeout=10)
