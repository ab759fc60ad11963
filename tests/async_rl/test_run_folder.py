"""A run's folder: made, found by `latest`, and never written over."""

import os
from pathlib import Path

import pytest

from async_rl.errors import ResourceError
from async_rl.run_folder import RunFolder


def test_a_new_folder_is_the_latest(tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = RunFolder(tmp_path / name)
        folder.create(folder.journal)
        assert sorted(p.name for p in folder.path.iterdir()) == ["journal", "logs"], "only what is asked for"
    assert (tmp_path / "latest").resolve() == tmp_path / "second"
    assert os.readlink(tmp_path / "latest") == "second", "relative: the folder of runs can be moved"


def test_an_earlier_run_is_set_aside_whole_and_never_over_another(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.set_aside() is None
    asides = set()
    for content in ("a", "b", "c"):
        folder.create()
        folder.config.write_text(content)
        os.utime(folder.path, (1_700_000_000, 1_700_000_000))
        aside = folder.set_aside()
        assert aside is not None and (aside / "config.yaml").read_text() == content
        asides.add(aside)
    assert len(asides) == 3
    assert not folder.path.exists()


def test_a_run_that_goes_on_is_never_set_aside_by_another_of_its_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        with pytest.raises(ResourceError, match="a run is writing"), folder.locked():
            pass
        with RunFolder(tmp_path / "other").locked():
            pass
    with folder.locked():
        pass


def test_a_place_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="runs_dir"):
        RunFolder(tmp_path / "file" / "run").create()
