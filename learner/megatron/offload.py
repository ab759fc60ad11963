"""A model that lies in the host's memory between uses, so that others have its place on the device meanwhile.

Owns what comes back for which use, and the copies. Storages are emptied and filled again under their tensors, so that
whatever views them (Megatron's buckets, the optimizer's shard of float32 weights, a tied output layer) stays a view; a
copy of each tensor by itself would tear them apart. Knows nothing of layers, losses or schedules.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

import torch
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor, UntypedStorage

from learner.megatron import runtime


class Holding(Enum):
    """What a model holds on its device."""

    WEIGHTS = auto()
    GRADIENTS = auto()
    """Their room alone comes back: each step begins with setting them to 0."""
    OPTIMIZER = auto()


Tensors = Mapping[Holding, Callable[[], Iterable[Tensor]]]
"""What is there of each holding now; asked before it leaves, since loading a checkpoint makes new tensors."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A storage's room on the device, and its bytes on the host."""

    storage: UntypedStorage
    num_bytes: int
    copy: Tensor | None
    """[num_bytes] uint8; None where nothing is kept."""


class Offload:
    """The holdings of one model, away from their device but inside of `back`."""

    def __init__(self, tensors: Tensors, *, is_frozen: bool) -> None:
        """Sends them all away.

        Args:
            tensors: of each holding; a storage that two share goes and comes with the first.
            is_frozen: no use changes anything, so that what is on the host stays true.
        """
        self._tensors = tensors
        self._is_frozen = is_frozen
        self._places: dict[Holding, list[_Place]] = {}
        self._is_back = False
        self._send_away(tuple(tensors))

    @contextmanager
    def back(self, *holdings: Holding) -> Iterator[None]:
        """Inside the block these are on the device; not to be nested.

        Args:
            holdings: weights among them, of which the optimizer may have views.
        """
        assert not self._is_back and Holding.WEIGHTS in holdings, holdings
        self._bring_back(holdings)
        self._is_back = True
        try:
            yield
        finally:
            self._send_away(holdings)
            self._is_back = False

    def _bring_back(self, holdings: Iterable[Holding]) -> None:
        for place in (place for holding in holdings for place in self._places.get(holding, [])):
            place.storage.resize_(place.num_bytes)
            if place.copy is not None:
                _bytes_of(place.storage).copy_(place.copy, non_blocking=True)

    def _send_away(self, holdings: Iterable[Holding]) -> None:
        # Other streams may still read what is about to go (gradients and weights on their way to peers).
        runtime.wait_for_device()
        leaving: list[UntypedStorage] = []
        seen: set[int] = set()
        for holding in sorted(holdings, key=lambda holding: holding.value):
            storages = _storages(self._tensors[holding](), seen)
            self._places[holding] = self._kept(holding, storages)
            leaving += storages
        runtime.wait_for_device()
        # Freed for this process's other models, whose allocator it stays with.
        for storage in leaving:
            storage.resize_(0)

    def _kept(self, holding: Holding, storages: list[UntypedStorage]) -> list[_Place]:
        """Copies on the host, in the room of the last ones where that fits."""
        before = self._places.get(holding, [])
        if before and self._is_frozen:
            return before
        places = []
        for index, storage in enumerate(storages):
            copy = None
            if holding is not Holding.GRADIENTS:
                old = before[index].copy if index < len(before) else None
                copy = old if old is not None and len(old) == storage.nbytes() else _room(storage.nbytes())
                copy.copy_(_bytes_of(storage), non_blocking=True)
            places.append(_Place(storage=storage, num_bytes=storage.nbytes(), copy=copy))
        return places


def optimizer_tensors(optimizer: MegatronOptimizer) -> Iterator[Tensor]:
    """Weights in float32, which are views of the model's where that has no fewer bits, and moments."""
    for group in optimizer.param_groups:
        yield from group["params"]
    for _, state in optimizer.state.items():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _storages(tensors: Iterable[Tensor], seen: set[int]) -> list[UntypedStorage]:
    """Those on the device that are not empty and have not been seen, each once."""
    found = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type == runtime.device().type and storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found.append(storage)
    return found


def _bytes_of(storage: UntypedStorage) -> Tensor:
    """[B] uint8, a view."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _room(num_bytes: int) -> Tensor:
    """[B] uint8 on the host; pinned where a device copies into it, which is several times faster."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=runtime.USE_CUDA)
