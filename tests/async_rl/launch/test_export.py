"""An export of what is no checkpoint is refused. What it writes is tested with the learner's backend."""

from pathlib import Path

import msgspec
import pytest

from async_rl.checkpoints import LoopState
from async_rl.config.compose import dump_config
from async_rl.config.model import Dtype, ModelConfig
from async_rl.config.schema import RunConfig, SftConfig
from async_rl.errors import ResourceError
from async_rl.launch.export import Trained, check_target, export_checkpoint
from async_rl.ledger import LedgerSnapshot
from tests.async_rl.launch.earlier import checkpoint


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


def test_a_fine_tunings_new_model_lies_in_its_folder(tmp_path: Path) -> None:
    trained = Trained.by(SftConfig(steps=7, model=ModelConfig(dtype=Dtype.bfloat16)), tmp_path)
    assert trained.model == ModelConfig(path=str(tmp_path / "new_model"), dtype=Dtype.bfloat16)
    assert trained.num_steps == 7
    assert Trained.by(SftConfig(model=ModelConfig(path="m")), tmp_path).model.path == "m"


def test_what_is_there_already_is_replaced_only_where_that_is_wanted_and_only_a_model(tmp_path: Path) -> None:
    check_target(tmp_path / "new", force=False)
    check_target(tmp_path, force=False)
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ResourceError, match="exists and holds no model"):
            check_target(folder, force=True)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ResourceError) as caught:
        check_target(tmp_path, force=False)
    assert caught.value.problem == f"there is a model in {tmp_path}"
    assert "--force" in caught.value.remedy
    check_target(tmp_path, force=True)


def test_a_place_that_cannot_be_written_is_said_before_anything_is_loaded(config: RunConfig, tmp_path: Path) -> None:
    made = checkpoint(config, 3)
    (made.parent.parent / "config.yaml").write_text(dump_config(config))
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError) as caught:
        export_checkpoint(made, tmp_path / "file" / "out")
    assert caught.value.problem == "cannot write the model: Not a directory"
