"""The virtual environment in which peers run beside us: their packages, and everything else from our own.

Owns its folder and its pins. The peers' few packages come first and ours are visible behind them, so both sides use
the same torch, in the same process.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PINS = Path(__file__).with_name("peers.txt")
FOLDER = Path(__file__).with_name(".cache") / "peers"


class PeerEnvironmentError(Exception):
    """The environment cannot be made."""


def make() -> Path:
    """Makes the environment, or leaves it where it is as the pins say; its interpreter."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "made-of"
    host = sysconfig.get_path("purelib")
    content = hashlib.sha256("\n".join([PINS.read_text(encoding="utf-8"), host, sys.version]).encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == content:
        return python
    print(f"making {FOLDER} with the packages of {PINS.name}", flush=True)
    stamp.unlink(missing_ok=True)
    _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
    _run(str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--requirement", str(PINS))
    # Its name puts it behind every other .pth file, and its content behind the peers' own packages.
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(site, "zz_host.pth").write_text(host + "\n", encoding="utf-8")
    stamp.write_text(content, encoding="utf-8")
    return python


def run(python: Path, script: Path, *arguments: str) -> int:
    """Runs a script of ours among the peers, on one thread; its exit status."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(script.parent)]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.run([str(python), str(script), *arguments], env=variables, check=False).returncode


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise PeerEnvironmentError(
            f"{' '.join(command)} failed:\n{last}\nThe peers' packages come from PyPI: is the network there?"
        )
