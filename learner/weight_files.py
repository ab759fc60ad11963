"""The safetensors of a Hugging Face folder, read part by part.

Owns which files count and what is said of one that cannot be read. Knows nothing of what the weights mean.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from async_rl.errors import ModelError

SINGLE = "model.safetensors"
"""The file of a model that has one."""
INDEX = "model.safetensors.index.json"
"""Which of several files has which tensor."""


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...

    def __getitem__(self, part: tuple[slice, ...]) -> torch.Tensor: ...


class _OpenFile(Protocol):
    """What safetensors, which is untyped, opens."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...


class WeightFiles:
    """A folder's tensors: nothing stands in memory but what was asked for."""

    def __init__(self, folder: Path) -> None:
        """Reads the files' headers; a `ModelError` for what cannot be read."""
        self._files: dict[str, Path] = {}
        self._open: dict[Path, _OpenFile] = {}
        for file in _weight_files(folder):
            with _reading(file):
                self._open[file] = cast(_OpenFile, safe_open(file, framework="pt"))
                self._files |= dict.fromkeys(self._open[file].keys(), file)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor; None where there is none of this name."""
        file = self._files.get(name)
        if file is None:
            return None
        with _reading(file):
            return tuple(self._open[file].get_slice(name).get_shape())

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        """What lies in a slice of each of a tensor's dimensions, in the file's number format."""
        file = self._files[name]
        with _reading(file):
            return self._open[file].get_slice(name)[part]


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"the weights cannot be read: {error}", place=str(file), remedy="copy or download the file again"
        ) from error


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        return [folder / shard for shard in _shards_in(index)]
    if not (folder / SINGLE).is_file():
        raise ModelError(
            f"there is neither {SINGLE} nor {INDEX}",
            place=str(folder),
            remedy="save the model with safetensors (`save_pretrained` does)",
        )
    return [folder / SINGLE]


def _shards_in(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the index of the weights cannot be read: {type(error).__name__}: {error}",
            place=str(index),
            remedy="copy or download the file again",
        ) from error
