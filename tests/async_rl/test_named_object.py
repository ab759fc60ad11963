"""What a config names is imported once, and by its own name."""

from pathlib import Path

import pytest

from async_rl.errors import DataError
from async_rl.named_object import load_object


def load(spec: str) -> object:
    return load_object(spec, kind="thing", place="data.task", remedy="name another", error=DataError)


def test_a_module_and_a_file_are_both_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("thing = 7\n")
    assert load("math:pi") == pytest.approx(3.14159, abs=1e-5)
    assert load(f"{tmp_path}/mine.py:thing") == 7


def test_files_of_one_name_do_not_hide_each_other_or_a_module(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "math.py").write_text(f"pi = {folder!r}\n")
    assert [load(f"{tmp_path}/{folder}/math.py:pi") for folder in ("a", "b")] == ["a", "b"]
    assert load("math:tau") == pytest.approx(6.28318, abs=1e-5)


def test_a_file_is_run_once_a_process(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text("made = object()\n")
    assert load(f"{tmp_path}/counted.py:made") is load(f"{tmp_path}/counted.py:made")


def test_a_file_that_failed_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise RuntimeError('half done')\n")
    with pytest.raises(DataError, match="does not import: RuntimeError: half done"):
        load(f"{path}:thing")
    path.write_text("thing = 'mended, and longer'\n")
    assert load(f"{path}:thing") == "mended, and longer"
