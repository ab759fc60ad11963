"""Weights through files, in a folder that the learner and all generators see: publisher and subscribers on any machine.

Owns the names of the files, and how long a version stays. Knows nothing of models, learners or engines.

A version is one file. Its name appears once it is whole, and is never used again. The newest versions stay, and of the
older ones those that somebody reads: a reader leaves a marker beside the file and renews it while it reads. Ages are
told by the file system's own clock, since the machines' differ; a marker that is old belongs to a dead reader.
"""

import errno
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash

from async_rl.errors import ResourceError, WeightsError
from async_rl.protocol import TensorEntry, WeightManifest
from async_rl.weights.payload import PayloadBuffer, TimedIterator, aligned, entry_of, payload_bytes, read_entry

TRANSPORT = "file"
NUM_VERSIONS = 2
"""That stay, whether read or not."""
READER_TIMEOUT_S = 120.0
"""After which a marker that nobody has renewed is a dead reader's."""
RENEW_S = 10.0

_WHOLE, _PART, _READING = ".weights", ".part", ".reading"


class FileWeightPublisher:
    """Writes each version into a file of its own; a `WeightPublisher`.

    The folder is its own: what other publishers have left there is removed at the first publish.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = secrets.token_hex(8)
        self._generation = 0
        self._is_closed = False

    def publish(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, gather_s: float = 0.0
    ) -> WeightManifest:
        """See `WeightPublisher`. Float32 and bfloat16; other dtypes are a `WeightsError`."""
        assert not self._is_closed
        started = time.perf_counter()
        stream = TimedIterator(tensors)
        self._generation += 1
        path = self._path(self._generation)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            entries = _write_whole(path, stream)
        except OSError as error:
            raise _no_room(error, self._folder) from error
        self._retire(now=path.stat().st_mtime)
        return WeightManifest(
            version=version,
            transport=TRANSPORT,
            location=str(path),
            generation=self._generation,
            tensors=entries,
            num_bytes=payload_bytes(entries),
            gather_s=gather_s + stream.elapsed_s,
            transfer_s=time.perf_counter() - started - stream.elapsed_s,
        )

    def close(self) -> None:
        """See `WeightPublisher`."""
        if not self._is_closed and self._folder.is_dir():
            remove_versions(self._folder)
        self._is_closed = True

    def _path(self, generation: int) -> Path:
        return self._folder / f"{self._name}.{generation}{_WHOLE}"

    def _retire(self, *, now: float) -> None:
        """Removes what is too old, but what is being read."""
        kept = {self._path(self._generation - age).name for age in range(NUM_VERSIONS)}
        markers = list(self._folder.glob(f"*{_READING}"))
        fresh = [marker for marker in markers if now - _time_of(marker) < READER_TIMEOUT_S]
        read = {_version_of(marker) for marker in fresh}
        old = [path for path in self._folder.glob(f"*{_WHOLE}") if path.name not in kept | read]
        for path in [*old, *self._folder.glob(f"*{_PART}"), *(set(markers) - set(fresh))]:
            path.unlink(missing_ok=True)


class FileWeightSubscriber:
    """Copies versions out of files; a `WeightSubscriber`."""

    def __init__(self) -> None:
        self._buffer = PayloadBuffer()

    def receive(self, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
        """See `WeightSubscriber`."""
        try:
            return self._buffer.receive(manifest, TRANSPORT, partial(_read_whole, manifest))
        except EOFError as error:
            raise WeightsError(f"version {manifest.version}: {manifest.location} is truncated at {error}") from error
        except OSError as error:
            raise WeightsError(f"version {manifest.version} is gone from {manifest.location}: {error}") from error

    def close(self) -> None:
        """See `WeightSubscriber`."""
        self._buffer.free()


def remove_versions(folder: Path) -> list[str]:
    """Removes every version in a folder, read or not, and returns their paths: for when a run has ended."""
    found = [path for suffix in (_WHOLE, _PART, _READING) for path in sorted(folder.glob(f"*{suffix}"))]
    for path in found:
        path.unlink(missing_ok=True)
    return [str(path) for path in found]


def _write_whole(path: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> list[TensorEntry]:
    part = path.with_suffix(_PART)
    try:
        with part.open("xb") as file:
            entries = list(_write_all(file, tensors))
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return entries


def _write_all(file: BinaryIO, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[TensorEntry]:
    end = 0
    for name, tensor in tensors:
        planned = entry_of(name, tensor, aligned(end))
        source = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        file.write(bytes(planned.offset - end))
        file.write(source)
        end = planned.offset + planned.num_bytes
        yield entry_of(name, tensor, planned.offset, xxhash.xxh3_64_intdigest(source))


def _read_whole(manifest: WeightManifest, target: memoryview) -> list[str]:
    """Copies the payload into [num_bytes] and returns the names whose checksum differs."""
    path = Path(manifest.location)
    with _marked(path) as marker, path.open("rb", buffering=0) as file:
        renewed, corrupt = time.monotonic(), []
        for entry in manifest.tensors:
            if time.monotonic() - renewed > RENEW_S:
                marker.touch()
                renewed = time.monotonic()
            if not read_entry(file.fileno(), entry, target):
                corrupt.append(entry.name)
        return corrupt


@contextmanager
def _marked(path: Path) -> Iterator[Path]:
    """Inside the block the version is known to be read."""
    marker = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_READING}")
    marker.touch(exist_ok=False)
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)


def _version_of(marker: Path) -> str:
    """The name of the file that a marker stands beside."""
    return marker.name.removesuffix(_READING).rpartition(".")[0]


def _time_of(marker: Path) -> float:
    """When it was renewed; long ago, if its reader has just taken it away."""
    try:
        return marker.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _no_room(error: OSError, folder: Path) -> ResourceError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    free = ""
    if full:
        space = os.statvfs(folder)
        free = f", and has {space.f_bavail * space.f_frsize / 2**30:.1f} GiB free"
    return ResourceError(
        f"{folder} cannot take a version of the weights{free}: {error.strerror}",
        place="weights.folder",
        remedy=f"name a folder with room for {NUM_VERSIONS + 1} versions, which all machines see and may write to",
    )
