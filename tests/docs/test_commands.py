"""What the documentation tells people to type works."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.commands import Command, Kind, commands_of, documented_commands

REPOSITORY = Path(__file__).resolve().parents[2]
COMMANDS = documented_commands(REPOSITORY)
OUTSIDE = {"cd", "git", "source", "export", "python3.11"}
"""Programs that are not ours to check."""


def run(text: str) -> None:
    """Runs a shell command in the checkout with the environment's programs first on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def existence_check(text: str) -> str | None:
    """A cheap command that fails where `text` could not work; None where there is nothing of ours in it."""
    words = [word for word in shlex.split(text) if "=" not in word or word.startswith("-")]
    if not words or words[0] in OUTSIDE:
        return None
    match words:
        case ["make", *targets]:
            return f"make --dry-run {' '.join(targets)}"
        case ["async-rl", "launch", *_]:
            return f"{text} --dry-run"
        case ["async-rl", subcommand, *_] if not subcommand.startswith("-"):
            return f"async-rl {subcommand} --help"
        case ["python" | ".venv/bin/python", script, *_] if script.endswith(".py"):
            return f"test -f {script}"
        case [program, *_]:
            return f"command -v {shlex.quote(program)}"
    return None


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.place} {c.text}")
def test_documented_command_works(command: Command) -> None:
    check = command.text if command.kind is Kind.RUN else existence_check(command.text)
    if check is not None:
        run(check)


def test_the_readme_shows_commands() -> None:
    assert [command for command in COMMANDS if command.place.startswith("README.md")]


def test_console_blocks_give_prompted_lines_and_sh_blocks_every_line() -> None:
    page = (
        "text\n```console\n$ async-rl --version\n0.1.0\n$ a \\\n  b\n```\n"
        "```sh\n# why\nmake test  # all\n```\n```text\n$ no\n```\n"
    )
    assert [(c.place, c.kind, c.text) for c in commands_of(page, "p.md")] == [
        ("p.md:3", Kind.RUN, "async-rl --version"),
        ("p.md:5", Kind.RUN, "a   b"),
        ("p.md:10", Kind.EXISTS, "make test"),
    ]


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("make quickstart", "make --dry-run quickstart"),
        (
            "async-rl launch configs/quickstart.yaml steps=3",
            "async-rl launch configs/quickstart.yaml steps=3 --dry-run",
        ),
        ("async-rl export runs/latest out", "async-rl export --help"),
        ("python benchmarks/overlap.py --json x.json", "test -f benchmarks/overlap.py"),
        ("git clone somewhere", None),
        ("nonsense --x", "command -v nonsense"),
    ],
)
def test_a_long_command_is_checked_for_existence(text: str, check: str | None) -> None:
    assert existence_check(text) == check
