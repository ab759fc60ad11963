"""A folder of golden vectors: cases with inputs and the right outputs, in the format that its README describes.

Owns the files and how close is close enough. Must not know the functions that are checked.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class FolderError(Exception):
    """The folder is not one of golden vectors, or is broken."""


class Tolerance(NamedTuple):
    """|got − want| ≤ max(loose, atol + rtol·|want|)."""

    rtol: float
    atol: float

    def excess(self, got: Tensor, want: Tensor, loose: float) -> float:
        """Largest error in units of its bound; infinite for another shape or dtype of truth values, and for NaN."""
        if got.shape != want.shape or (want.dtype == torch.bool) != (got.dtype == torch.bool):
            return float("inf")
        if want.dtype == torch.bool:
            return 0.0 if torch.equal(got, want) else float("inf")
        if not want.numel():
            return 0.0
        got, want = got.detach().double(), want.double()
        bound = torch.clamp(self.atol + self.rtol * want.abs(), min=loose)
        errors = torch.where(got == want, 0.0, (got - want).abs() / bound)
        return float(torch.where(errors.isnan(), float("inf"), errors).max())


class Arrays:
    """The folder's arrays, each file opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Mapping[str, Any]] = {}

    def read(self, file: str, key: str) -> Tensor:
        """A fresh copy."""
        if file not in self._files:
            try:
                self._files[file] = np.load(self._folder / file)
            except (OSError, ValueError) as error:
                raise FolderError(f"{self._folder / file} cannot be read: {error}") from error
        try:
            return torch.from_numpy(np.array(self._files[file][key]))
        except KeyError as error:
            raise FolderError(f"{self._folder / file} has no array {key!r}") from error


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One case: named tensors and options in, what should come out, and how close. Remembers what was asked for."""

    id: str
    kind: str
    name: str
    options: Mapping[str, Any]
    scalars: Mapping[str, float]
    """Numbers that should come out."""
    differs: bool
    """The peer is wrong here, and the outputs are the right ones."""
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    loose: Mapping[str, float]
    file: str
    arrays: Arrays
    tolerance: Tolerance
    asked: set[str] = field(default_factory=set)

    def input(self, role: str) -> Tensor:
        """An input tensor, a fresh copy."""
        self.asked.add(role)
        return self.arrays.read(self.file, self.inputs[role])

    def has_input(self, role: str) -> bool:
        """Whether the case gives this input."""
        return role in self.inputs

    def option(self, name: str, default: Any = None) -> Any:
        """The option's value, or the default where the case does not set it."""
        self.asked.add(name)
        return self.options.get(name, default)

    def ignore(self, *names: str) -> None:
        """Inputs or options that change nothing of what our functions give."""
        self.asked.update(names)

    def unasked(self) -> set[str]:
        """Inputs and options that nobody has asked for yet."""
        return {*self.inputs, *self.options} - self.asked

    def wanted(self) -> dict[str, Tensor]:
        """All that should come out, by name; numbers as float64 scalars."""
        arrays = {name: self.arrays.read(self.file, key) for name, key in self.outputs.items()}
        return arrays | {name: torch.tensor(number, dtype=torch.float64) for name, number in self.scalars.items()}

    def excess(self, name: str, got: Tensor) -> float:
        """Largest error of an output in units of its bound: at most 1 where it is as it should be."""
        return self.tolerance.excess(got, self.wanted()[name], self.loose.get(name, 0.0))

    def __repr__(self) -> str:
        return self.id


class GoldenFolder:
    """Every case of a folder: those of `manifest.json`, and of `differs.json` if it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrays = Arrays(path)
        if not (path / "manifest.json").is_file():
            raise FolderError(f"{path} is no folder of golden vectors: it has no manifest.json")

    @cached_property
    def cases(self) -> list[Golden]:
        """In the files' order."""
        try:
            return list(self._read())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FolderError(f"{self._path} is broken: {type(error).__name__}: {error}") from error

    def _read(self) -> Iterator[Golden]:
        manifest = json.loads((self._path / "manifest.json").read_text(encoding="utf-8"))
        tolerance = Tolerance(rtol=float(manifest["tolerance"]["rtol"]), atol=float(manifest["tolerance"]["atol"]))
        for case in manifest["cases"]:
            distorted = case.get("metrics_distorted_by_empty_rows", {})
            right = {name: values["empty_rows_removed"] for name, values in distorted.items()}
            yield self._case(case, case["file"], case["outputs"], {**case["scalars"], **right}, tolerance, False)
        differs = self._path / "differs.json"
        if not differs.is_file():
            return
        content = json.loads(differs.read_text(encoding="utf-8"))
        for case in content["cases"]:
            right = case["right"]
            yield self._case(case, content["file"], right["arrays"], right["scalars"], tolerance, True)

    def _case(
        self,
        case: Mapping[str, Any],
        file: str,
        outputs: Mapping[str, str],
        scalars: Mapping[str, float | str],
        tolerance: Tolerance,
        differs: bool,
    ) -> Golden:
        return Golden(
            id=case["id"],
            kind=case["kind"],
            name=case["name"],
            options=case["options"],
            scalars={name: float(number) for name, number in scalars.items()},
            differs=differs,
            inputs=case["inputs"],
            outputs=outputs,
            loose=case.get("loose", {}),
            file=file,
            arrays=self._arrays,
            tolerance=tolerance,
        )
