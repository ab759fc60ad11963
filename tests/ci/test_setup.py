"""Set-up says what is missing instead of failing somewhere in pip."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """A folder with what set-up reads, without an environment."""
    for name in (".ci/setup", "requirements/cpu.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(repository / name, tmp_path / name)
    return tmp_path


def run_setup(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(checkout / ".ci" / "setup")],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_another_python_is_refused_by_name(checkout: Path) -> None:
    done = run_setup(checkout, PYTHON="/bin/false")
    assert (done.returncode, done.stderr) == (
        1,
        "setup: PYTHON=/bin/false is not a Python 3.11; name one that is.\n",
    )


def test_a_missing_venv_module_is_named_with_its_package(checkout: Path) -> None:
    # Answers every question as a Python 3.11 would, but has no venv.
    python = script(checkout / "python", 'case "$2" in *ensurepip*) exit 1;; esac')
    done = run_setup(checkout, PYTHON=str(python))
    assert done.returncode == 1
    assert "has no venv module: install it (Debian, Ubuntu: apt install python3.11-venv)" in done.stderr


def test_an_environment_of_another_python_is_not_touched(checkout: Path) -> None:
    script(checkout / ".venv" / "bin" / "python", "exit 1")
    done = run_setup(checkout)
    assert done.returncode == 1
    assert ".venv is there, but not of Python 3.11: remove it (rm -r .venv) and run again." in done.stderr
    assert (checkout / ".venv" / "bin" / "python").exists()


def test_nothing_is_done_while_nothing_has_changed(checkout: Path) -> None:
    script(checkout / ".venv" / "bin" / "python", 'echo "$@" >> "$(dirname "$0")/calls"')
    assert run_setup(checkout).returncode == 0
    calls = checkout / ".venv" / "bin" / "calls"
    assert "install" in calls.read_text()
    calls.unlink()
    done = run_setup(checkout)
    assert (done.returncode, done.stdout) == (0, "")
    assert "install" not in calls.read_text()


def test_a_new_pin_is_installed(checkout: Path) -> None:
    script(checkout / ".venv" / "bin" / "python", 'echo "$@" >> "$(dirname "$0")/calls"')
    assert run_setup(checkout).returncode == 0
    calls = checkout / ".venv" / "bin" / "calls"
    calls.unlink()
    lock = checkout / "requirements" / "cpu.txt"
    lock.write_text(lock.read_text() + "added==1.0\n")
    assert run_setup(checkout).returncode == 0
    assert "--requirement requirements/cpu.txt" in calls.read_text()


def test_where_pip_finds_no_cpu_torch_the_index_of_pytorch_is_asked(checkout: Path) -> None:
    script(
        checkout / ".venv" / "bin" / "python",
        'echo "$@" >> "$(dirname "$0")/calls"\ncase "$*" in *--index-url*) exit 0;; *" torch=="*) exit 1;; esac',
    )
    assert run_setup(checkout).returncode == 0
    calls = (checkout / ".venv" / "bin" / "calls").read_text()
    assert "--index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu" in calls
