"""What an earlier run leaves, and what a console was told."""

from io import StringIO
from pathlib import Path
from typing import cast

from rich.console import Console

from async_rl.checkpoints import Checkpoints, LoopState
from async_rl.checksums import Checksum, Manifest
from async_rl.config.schema import RunConfig
from async_rl.ledger import LedgerSnapshot
from async_rl.run_folder import RunFolder


def said(console: Console) -> str:
    return cast(StringIO, console.file).getvalue()


def checkpoint(config: RunConfig, version: int) -> Path:
    """What a run leaves of itself."""
    folder = RunFolder(Path(config.runs_dir, config.name)).checkpoints
    part = folder / f".writing-{version:08d}"
    (part / "learner").mkdir(parents=True)
    (part / "learner" / "weights").write_text(f"of {version}")
    Manifest(files={"learner/weights": Checksum.of(part / "learner" / "weights")}).write(part)
    snapshot = LedgerSnapshot(issued=40, ended={"trained": 32}, live_failures=dict.fromkeys(range(32, 40), 0))
    state = LoopState(version=version, ledger=snapshot, trained_tokens=99, next_evaluation_id=8, run_hash="abc")
    return Checkpoints(folder, config.checkpoint.keep).complete(part, state)
