"""Configs that come along: found by name, after what lies here."""

from pathlib import Path

import pytest

from async_rl.config.shipped import find_config, shipped_folder


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configs that come along; the test runs in another folder."""
    folder = tmp_path / "package" / "configs"
    folder.mkdir(parents=True)
    (folder / "quick.yaml").write_text("", encoding="utf-8")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return folder


def test_a_path_is_taken_as_it_is(shipped: Path) -> None:
    path = shipped.parent / "mine.yaml"
    path.write_text("", encoding="utf-8")
    assert find_config(str(path), shipped=shipped) == path


@pytest.mark.parametrize("name", ["quick", "quick.yaml", "configs/quick.yaml"])
def test_a_name_means_a_config_that_comes_along(shipped: Path, name: str) -> None:
    assert find_config(name, shipped=shipped) == shipped / "quick.yaml"


def test_a_file_of_that_name_here_comes_first(shipped: Path) -> None:
    Path("quick.yaml").write_text("", encoding="utf-8")
    assert find_config("quick.yaml", shipped=shipped) == Path("quick.yaml")


def test_what_is_nowhere_stays_as_given(shipped: Path) -> None:
    assert find_config("no/such.yaml", shipped=shipped) == Path("no/such.yaml")


def test_a_checkout_ships_its_configs_folder(repository: Path) -> None:
    assert shipped_folder() in (repository / "configs", repository / "async_rl" / "configs")
