"""Golden vectors: inputs and right outputs of the maths, kept beside the checkout in `../shared/golden`.

A machine without them skips the tests that compare with them, and says so; where CI runs, that is a failure.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"

if not FOLDER.is_dir() and not os.environ.get("CI"):
    pytest.skip(f"no golden vectors in {FOLDER}", allow_module_level=True)


class Golden:
    """One case: named tensors in, what should come out, and how close."""

    def __init__(self, case: dict[str, Any], file: str, right: dict[str, Any]) -> None:
        self.id: str = case["id"]
        self.options: dict[str, Any] = case["options"]
        self._inputs: dict[str, str] = case["inputs"]
        self._outputs: dict[str, str] = right["arrays"]
        self._loose: dict[str, float] = case.get("loose", {})
        self.scalars: dict[str, float] = right["scalars"]
        self._file = file

    def input(self, role: str) -> torch.Tensor:
        """An input tensor, a fresh copy."""
        return self._read(self._inputs[role])

    def has_input(self, role: str) -> bool:
        """Whether the case gives this input."""
        return role in self._inputs

    def check(self, name: str, got: torch.Tensor) -> None:
        """The named output is as it should be."""
        self._compare(name, got, self._read(self._outputs[name]))

    def check_scalar(self, name: str, got: float | torch.Tensor) -> None:
        """The named number is as it should be."""
        self._compare(name, torch.as_tensor(got), torch.tensor(self.scalars[name]))

    def _compare(self, name: str, got: torch.Tensor, want: torch.Tensor) -> None:
        got, want = got.detach().double(), want.double()
        assert got.shape == want.shape, (name, got.shape, want.shape)
        bound = torch.clamp(TOLERANCE["atol"] + TOLERANCE["rtol"] * want.abs(), min=self._loose.get(name, 0.0))
        assert ((got - want).abs() <= bound).all(), (self.id, name, got, want)

    def _read(self, key: str) -> torch.Tensor:
        with np.load(FOLDER / self._file) as arrays:
            return torch.from_numpy(np.array(arrays[key]))

    def __repr__(self) -> str:
        return self.id


_MANIFEST = json.loads((FOLDER / "manifest.json").read_text())
_DIFFERS = json.loads((FOLDER / "differs.json").read_text())
TOLERANCE: dict[str, Any] = _MANIFEST["tolerance"]


def golden_cases(kind: str, *names: str, **options: object) -> list[Golden]:
    """Cases that a peer and the formula agree on; without names all of the kind."""
    return list(_chosen(_MANIFEST["cases"], kind, names, options, differs=False))


def golden_differences(kind: str, *names: str, **options: object) -> list[Golden]:
    """Cases where the peer is wrong; the outputs are the right ones."""
    return list(_chosen(_DIFFERS["cases"], kind, names, options, differs=True))


def _chosen(
    cases: list[dict[str, Any]], kind: str, names: tuple[str, ...], options: dict[str, object], *, differs: bool
) -> Iterator[Golden]:
    for case in cases:
        chosen = case["kind"] == kind and (not names or case["name"] in names)
        if not chosen or any(case["options"].get(key) != value for key, value in options.items()):
            continue
        if differs:
            yield Golden(case, _DIFFERS["file"], case["right"])
        else:
            yield Golden(case, case["file"], {"arrays": case["outputs"], "scalars": case["scalars"]})
