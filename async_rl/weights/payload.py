"""The bytes of a version: how tensors lie in a payload, and how they are copied, hashed and checked.

Owns what all transports that move bytes have in common. Knows nothing of where a payload lies.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator

import torch
import xxhash

from async_rl.errors import WeightsError
from async_rl.protocol import TensorEntry, WeightManifest

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGNMENT = 64
# Copying and hashing piece by piece reads memory once: the piece is still in the cache when it is hashed.
_PIECE_BYTES = 1 << 20


def lay_out(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[TensorEntry]:
    """Where each tensor lies in a payload; checksums are 0."""
    layout: list[TensorEntry] = []
    end = 0
    for name, tensor in tensors:
        layout.append(entry_of(name, tensor, aligned(end)))
        end = layout[-1].offset + layout[-1].num_bytes
    return layout


def aligned(offset: int) -> int:
    """Where the next tensor may begin."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def entry_of(name: str, tensor: torch.Tensor, offset: int, checksum: int = 0) -> TensorEntry:
    """What a manifest says of a tensor; a `WeightsError` for a dtype that does not travel."""
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


def payload_bytes(layout: list[TensorEntry]) -> int:
    """Bytes of all tensors and of what lies between them."""
    return max((entry.offset + entry.num_bytes for entry in layout), default=0)


def write(target: torch.Tensor, tensor: torch.Tensor) -> int:
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


def read_entry(fd: int, entry: TensorEntry, target: memoryview, *, start_at: int = 0) -> bool:
    """Copies one tensor into its place in [num_bytes of the payload]; whether its checksum is right.

    Args:
        fd: open for reading.
        entry: a sound one.
        target: the whole payload's.
        start_at: where the payload begins in the file.

    Raises:
        EOFError: the file ends before the tensor does.
    """
    digest = xxhash.xxh3_64()
    end = entry.offset + entry.num_bytes
    for start in range(entry.offset, end, _PIECE_BYTES):
        piece = target[start : min(start + _PIECE_BYTES, end)]
        if os.preadv(fd, [piece], start_at + start) != len(piece):
            raise EOFError(entry.name)
        digest.update(piece)
    return digest.intdigest() == entry.checksum


def check_layout(manifest: WeightManifest) -> None:
    """Raises a `WeightsError` where an entry contradicts itself or its manifest: it must not reach memory."""
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


def view(buffer: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """The tensor that lies in a payload [num_bytes] uint8."""
    part = buffer[entry.offset : entry.offset + entry.num_bytes]
    return part.view(_DTYPES[entry.dtype]).view(entry.shape)


class PayloadBuffer:
    """Memory that a subscriber copies one version after the other to: fresh pages would cost more than the copy."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def receive(
        self, manifest: WeightManifest, transport: str, read: Callable[[memoryview], list[str]]
    ) -> list[tuple[str, torch.Tensor]]:
        """A version's tensors, whole; valid until the next call.

        Args:
            manifest: of the version.
            transport: that the reader knows.
            read: fills the payload, and returns the names whose checksums are wrong.

        Raises:
            WeightsError: it travels otherwise, its manifest contradicts itself, or it is corrupt.
            Exception: whatever `read` raises.
        """
        if manifest.transport != transport:
            raise WeightsError(f"version {manifest.version} travels by {manifest.transport}, not by {transport}")
        check_layout(manifest)
        if len(self._bytes) != manifest.num_bytes:
            # Given back first: there may be no room for both.
            self.free()
            self._bytes = torch.zeros(manifest.num_bytes, dtype=torch.uint8)
        corrupt = read(self._bytes.numpy().data)
        if corrupt:
            raise WeightsError(f"version {manifest.version} is corrupt: {', '.join(corrupt)}")
        return [(entry.name, view(self._bytes, entry)) for entry in manifest.tensors]

    def free(self) -> None:
        """Gives the memory back."""
        self._bytes = torch.empty(0, dtype=torch.uint8)


class TimedIterator:
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
