"""Weights through shared memory: publisher and subscribers on one machine.

Owns the layout of a version inside a slot, its checksums, and which slot comes next. Knows nothing of models,
learners or engines.

The publisher writes each version into the slot that it wrote longest ago, so a reader has the time between
`num_slots - 1` publishes before its version is overwritten under its hands, which it then sees. Nobody locks
anything: a dead or slow reader costs the publisher nothing. All memory is allocated at the first publish and
used again by the later ones, since fresh pages cost several times the copy.
"""

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import xxhash

from async_rl.errors import WeightsError
from async_rl.protocol import TensorEntry, WeightManifest
from async_rl.weights.slots import HEADER_BYTES, NUM_SLOTS, SHARED_MEMORY, Slot, create_slots, read_header

TRANSPORT = "shm"

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGNMENT = 64
# Copying and hashing piece by piece reads memory once: the piece is still in the cache when it is hashed.
_PIECE_BYTES = 1 << 20


class ShmWeightPublisher:
    """Writes versions into slots of shared memory; a `WeightPublisher`.

    The first publish fixes names, dtypes and shapes. Use `close`, or `remove_leftovers` after a crash: the
    memory outlives the process.
    """

    def __init__(self, run_id: str, *, num_slots: int = NUM_SLOTS, folder: Path = SHARED_MEMORY) -> None:
        """`run_id` is part of the file names: letters, digits, `_`, `.`, `-`; unique among the runs of a machine."""
        assert num_slots >= 2, num_slots
        self._run_id = run_id
        self._num_slots = num_slots
        self._folder = folder
        self._layout: list[TensorEntry] = []
        self._slots: list[Slot] = []
        self._current = 0
        self._generation = 0
        self._is_closed = False

    def publish(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, gather_s: float = 0.0
    ) -> WeightManifest:
        """See `WeightPublisher`. Float32 and bfloat16; other dtypes are a `WeightsError`."""
        assert not self._is_closed
        started = time.perf_counter()
        stream = _TimedIterator(tensors)
        if self._slots:
            source: Iterable[tuple[str, torch.Tensor]] = stream
        else:
            # Sizes are known only once everything has been seen, so the first version is held in whole: not on a GPU,
            # which has no room for what its peers hold of the model.
            source = [(name, tensor.detach().cpu()) for name, tensor in stream]
            self._layout = lay_out(source)
            self._slots = create_slots(self._folder, self._run_id, self._num_slots, _payload_bytes(self._layout))
        # A publish that fails midway spoils its slot, so the next one takes the same slot again.
        self._generation += 1
        number = (self._current + 1) % self._num_slots
        slot = self._slots[number]
        slot.begin(self._generation)
        entries = _write_all(slot.payload, self._layout, source)
        slot.finish(self._generation)
        self._current = number
        return WeightManifest(
            version=version,
            transport=TRANSPORT,
            location=str(slot.path),
            generation=self._generation,
            tensors=entries,
            num_bytes=_payload_bytes(entries),
            gather_s=gather_s + stream.elapsed_s,
            transfer_s=time.perf_counter() - started - stream.elapsed_s,
        )

    def close(self) -> None:
        """See `WeightPublisher`."""
        self._is_closed = True
        for slot in self._slots:
            slot.close()
        self._slots = []


class ShmWeightSubscriber:
    """Copies versions out of shared memory; a `WeightSubscriber`.

    Reads with `pread`, never through a mapping: a file that shrinks under a mapping ends the process.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def receive(self, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
        """See `WeightSubscriber`."""
        if manifest.transport != TRANSPORT:
            raise WeightsError(f"version {manifest.version} travels by {manifest.transport}, not by {TRANSPORT}")
        _check_layout(manifest)
        if len(self._buffer) != manifest.num_bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)
            self._buffer = torch.zeros(manifest.num_bytes, dtype=torch.uint8)
        try:
            fd = os.open(manifest.location, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WeightsError(f"version {manifest.version} is gone from {manifest.location}: {error}") from error
        try:
            _check_generation(fd, manifest)
            corrupt = _read_all(fd, manifest, self._buffer.numpy().data)
            # Asked first, since a slot that is written again has wrong checksums too.
            _check_generation(fd, manifest)
        finally:
            os.close(fd)
        if corrupt:
            raise WeightsError(f"version {manifest.version} is corrupt: {', '.join(corrupt)}")
        return [(entry.name, _view(self._buffer, entry)) for entry in manifest.tensors]

    def close(self) -> None:
        """See `WeightSubscriber`."""
        self._buffer = torch.empty(0, dtype=torch.uint8)


def lay_out(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[TensorEntry]:
    """Where each tensor lies in a payload; checksums are 0."""
    layout: list[TensorEntry] = []
    end = 0
    for name, tensor in tensors:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        layout.append(_entry(name, tensor, offset))
        end = offset + layout[-1].num_bytes
    return layout


def _entry(name: str, tensor: torch.Tensor, offset: int, checksum: int = 0) -> TensorEntry:
    if tensor.dtype not in _DTYPE_NAMES:
        raise WeightsError(f"{name} is {tensor.dtype}; weights travel as {' or '.join(_DTYPES)}")
    return TensorEntry(
        name=name,
        dtype=_DTYPE_NAMES[tensor.dtype],
        shape=list(tensor.shape),
        offset=offset,
        num_bytes=tensor.numel() * tensor.element_size(),
        checksum=checksum,
    )


def _payload_bytes(layout: list[TensorEntry]) -> int:
    return max((entry.offset + entry.num_bytes for entry in layout), default=0)


def _write_all(
    payload: memoryview, layout: list[TensorEntry], tensors: Iterable[tuple[str, torch.Tensor]]
) -> list[TensorEntry]:
    target = torch.frombuffer(payload, dtype=torch.uint8)
    written: list[TensorEntry] = []
    for name, tensor in tensors:
        planned = layout[len(written)] if len(written) < len(layout) else None
        if planned is None or _entry(name, tensor, planned.offset) != planned:
            raise WeightsError(f"{name} {list(tensor.shape)} {tensor.dtype} is not what the first version had there")
        checksum = _write(target[planned.offset : planned.offset + planned.num_bytes], tensor)
        written.append(_entry(name, tensor, planned.offset, checksum))
    if len(written) < len(layout):
        raise WeightsError(f"{layout[len(written)].name} is missing from this version")
    return written


def _write(target: torch.Tensor, tensor: torch.Tensor) -> int:
    """Copies a tensor into [num_bytes] uint8 and returns the checksum of what lies there."""
    source = tensor.detach()
    if source.device.type != "cpu" or not source.is_contiguous():
        target.view(source.dtype).view(source.shape).copy_(source)
        return xxhash.xxh3_64_intdigest(target.numpy().data)
    source_bytes = source.reshape(-1).view(torch.uint8)
    digest = xxhash.xxh3_64()
    for start in range(0, len(target), _PIECE_BYTES):
        piece = target[start : start + _PIECE_BYTES]
        piece.copy_(source_bytes[start : start + _PIECE_BYTES])
        digest.update(piece.numpy().data)
    return digest.intdigest()


def _read_all(fd: int, manifest: WeightManifest, target: memoryview) -> list[str]:
    """Copies the payload into [num_bytes] and returns the names whose checksum differs."""
    corrupt: list[str] = []
    for entry in manifest.tensors:
        digest = xxhash.xxh3_64()
        end = entry.offset + entry.num_bytes
        for start in range(entry.offset, end, _PIECE_BYTES):
            piece = target[start : min(start + _PIECE_BYTES, end)]
            if os.preadv(fd, [piece], HEADER_BYTES + start) != len(piece):
                raise WeightsError(f"version {manifest.version}: {manifest.location} is truncated at {entry.name}")
            digest.update(piece)
        if digest.intdigest() != entry.checksum:
            corrupt.append(entry.name)
    return corrupt


def _check_generation(fd: int, manifest: WeightManifest) -> None:
    header = read_header(fd, manifest.location)
    if not header.holds(manifest.generation):
        raise WeightsError(
            f"version {manifest.version} (generation {manifest.generation}) has been overwritten: "
            f"{manifest.location} is at generation {header.begun}"
        )


def _check_layout(manifest: WeightManifest) -> None:
    for entry in manifest.tensors:
        dtype = _DTYPES.get(entry.dtype)
        is_sound = (
            dtype is not None
            and entry.num_bytes == math.prod(entry.shape) * dtype.itemsize
            and min(entry.shape, default=0) >= 0
            and entry.offset >= 0
            and entry.offset % dtype.itemsize == 0
            and entry.offset + entry.num_bytes <= manifest.num_bytes
        )
        if not is_sound:
            raise WeightsError(f"version {manifest.version}: the manifest's entry of {entry.name} contradicts itself")


def _view(buffer: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    part = buffer[entry.offset : entry.offset + entry.num_bytes]
    return part.view(_DTYPES[entry.dtype]).view(entry.shape)


class _TimedIterator:
    """Passes items on and adds up the time that their maker takes."""

    def __init__(self, items: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._items = iter(items)
        self.elapsed_s = 0.0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self

    def __next__(self) -> tuple[str, torch.Tensor]:
        started = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.elapsed_s += time.perf_counter() - started
