"""Parts of tensors, and what is said of files that cannot be read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from async_rl.errors import ModelError
from learner.weight_files import WeightFiles
from tests.learner.conftest import MakeReference

ROWS = slice(1, 3), slice(0, 4)


def test_a_part_is_read_without_the_rest(tmp_path: Path) -> None:
    tensor = torch.arange(24.0).reshape(6, 4)
    save_file({"a": tensor, "b": torch.ones(5, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    files = WeightFiles(tmp_path)
    assert files.shape("a") == (6, 4)
    assert torch.equal(files.read("a", ROWS), tensor[1:3])
    assert torch.equal(files.read("a", (slice(0, 6), slice(2, 4))), tensor[:, 2:])
    assert files.read("a", (slice(6, 6), slice(0, 4))).shape == (0, 4)
    assert files.read("b", (slice(1, 3),)).dtype == torch.bfloat16


def test_a_tensor_that_is_not_there_has_no_shape(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    assert WeightFiles(tmp_path / "model").shape("score.weight") is None


def test_only_the_files_that_the_index_names_are_read(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    (tmp_path / "model" / "consolidated.safetensors").write_bytes(b"another format")
    assert WeightFiles(tmp_path / "model").shape("model.norm.weight") == (64,)


def test_a_folder_without_safetensors_is_refused(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        WeightFiles(tmp_path / "model")


def test_a_torn_weight_file_is_named(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be read") as caught:
        WeightFiles(tmp_path / "model")
    assert caught.value.place == str(file)


def test_an_index_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="index of the weights cannot be read"):
        WeightFiles(tmp_path)
