"""Weights through shared memory: publisher and subscribers on one machine.

Owns which slot comes next, and what a reader asks of one. Knows nothing of models, learners or engines.

The publisher writes each version into the slot that it wrote longest ago, so a reader has the time between
`num_slots - 1` publishes before its version is overwritten under its hands, which it then sees. Nobody locks
anything: a dead or slow reader costs the publisher nothing. All memory is allocated at the first publish and
used again by the later ones, since fresh pages cost several times the copy.
"""

import os
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch

from async_rl.errors import WeightsError
from async_rl.protocol import TensorEntry, WeightManifest
from async_rl.weights.payload import (
    PayloadBuffer,
    TimedIterator,
    entry_of,
    lay_out,
    payload_bytes,
    read_entry,
    write,
)
from async_rl.weights.slots import HEADER_BYTES, NUM_SLOTS, SHARED_MEMORY, Slot, create_slots, read_header

TRANSPORT = "shm"


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
        stream = TimedIterator(tensors)
        if self._slots:
            source: Iterable[tuple[str, torch.Tensor]] = stream
        else:
            # Sizes are known only once everything has been seen, so the first version is held in whole: not on a GPU,
            # which has no room for what its peers hold of the model.
            source = [(name, tensor.detach().cpu()) for name, tensor in stream]
            self._layout = lay_out(source)
            self._slots = create_slots(self._folder, self._run_id, self._num_slots, payload_bytes(self._layout))
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
            num_bytes=payload_bytes(entries),
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
        self._buffer = PayloadBuffer()

    def receive(self, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
        """See `WeightSubscriber`."""
        return self._buffer.receive(manifest, TRANSPORT, partial(_read_slot, manifest))

    def close(self) -> None:
        """See `WeightSubscriber`."""
        self._buffer.free()


def _read_slot(manifest: WeightManifest, target: memoryview) -> list[str]:
    """Fills the payload from the slot, if that still holds the version."""
    try:
        fd = os.open(manifest.location, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise WeightsError(f"version {manifest.version} is gone from {manifest.location}: {error}") from error
    try:
        _check_generation(fd, manifest)
        corrupt = _read_all(fd, manifest, target)
        # Asked before the checksums are looked at: a slot that is written again has wrong ones too.
        _check_generation(fd, manifest)
    finally:
        os.close(fd)
    return corrupt


def _write_all(
    payload: memoryview, layout: list[TensorEntry], tensors: Iterable[tuple[str, torch.Tensor]]
) -> list[TensorEntry]:
    target = torch.frombuffer(payload, dtype=torch.uint8)
    written: list[TensorEntry] = []
    for name, tensor in tensors:
        planned = layout[len(written)] if len(written) < len(layout) else None
        if planned is None or entry_of(name, tensor, planned.offset) != planned:
            raise WeightsError(f"{name} {list(tensor.shape)} {tensor.dtype} is not what the first version had there")
        checksum = write(target[planned.offset : planned.offset + planned.num_bytes], tensor)
        written.append(entry_of(name, tensor, planned.offset, checksum))
    if len(written) < len(layout):
        raise WeightsError(f"{layout[len(written)].name} is missing from this version")
    return written


def _read_all(fd: int, manifest: WeightManifest, target: memoryview) -> list[str]:
    """Copies the payload into [num_bytes] and returns the names whose checksum differs."""
    try:
        return [e.name for e in manifest.tensors if not read_entry(fd, e, target, start_at=HEADER_BYTES)]
    except EOFError as error:
        raise WeightsError(f"version {manifest.version}: {manifest.location} is truncated at {error}") from error


def _check_generation(fd: int, manifest: WeightManifest) -> None:
    header = read_header(fd, manifest.location)
    if not header.holds(manifest.generation):
        raise WeightsError(
            f"version {manifest.version} (generation {manifest.generation}) has been overwritten: "
            f"{manifest.location} is at generation {header.begun}"
        )
