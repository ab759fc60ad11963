"""An export of what is no checkpoint is refused. What it writes is tested with the learner's backend."""

from pathlib import Path

import msgspec
import pytest

from async_rl.checkpoints import LoopState
from async_rl.errors import ResourceError
from async_rl.launch.export import export_checkpoint
from async_rl.ledger import LedgerSnapshot


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="is not a checkpoint"):
        export_checkpoint(tmp_path / "runs" / "it" / "checkpoints" / "00000003", tmp_path / "out")


def test_a_checkpoint_without_its_run_is_refused(tmp_path: Path) -> None:
    state = LoopState(
        version=3,
        ledger=LedgerSnapshot(issued=0, ended={}, live_failures={}),
        trained_tokens=0,
        next_evaluation_id=0,
        run_hash=None,
    )
    (tmp_path / "loop.json").write_bytes(msgspec.json.encode(state))
    with pytest.raises(ResourceError, match=r"no .*config\.yaml beside the checkpoint"):
        export_checkpoint(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
