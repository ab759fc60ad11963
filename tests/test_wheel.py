"""What a user who installs the wheel gets: four import names, the configs as data, and nothing of ours besides."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel_names(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths inside the wheel built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=repository,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("async_rl-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_has_the_four_packages_and_nothing_else(wheel_names: set[str]) -> None:
    top_level = {name.split("/")[0] for name in wheel_names}
    metadata = {name for name in top_level if name.endswith(".dist-info")}
    assert len(metadata) == 1
    assert top_level - metadata == {"async_rl", "correction", "generators", "learner"}


def test_wheel_carries_every_config_as_data(wheel_names: set[str], repository: Path) -> None:
    configs = {path.relative_to(repository).as_posix() for path in (repository / "configs").rglob("*.yaml")}
    assert configs
    assert {f"async_rl/{name}" for name in configs} <= wheel_names


def test_no_test_ships(wheel_names: set[str]) -> None:
    assert not [name for name in wheel_names if "test" in Path(name).name]


def test_async_rl_init_is_empty(repository: Path) -> None:
    assert (repository / "async_rl" / "__init__.py").read_bytes() == b""
