"""Reads a published version beside generation and holds it until the engine takes it.

Owns the thread that copies, verifies and, where adapters come alone, merges them. Knows no engine and no model; runs in
the process that has the model.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from async_rl.errors import WeightsError
from async_rl.protocol import WeightManifest
from async_rl.weights.transport import WeightSubscriber
from generators.adapter_merge import is_adapter, merged_into


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A version as the model takes it."""

    tensors: list[tuple[str, torch.Tensor]]
    """Hugging Face names and tensors, on the CPU."""
    is_adapter: bool
    """Only what adapters change; the model's other weights stay as they are."""


class WeightStage:
    """One version at a time.

    stage.begin(manifest)
    done, problem = stage.poll()        # until done; a problem in words means that there is nothing to take
    tensors = stage.take()              # valid until the next `begin`
    """

    def __init__(self, subscriber: WeightSubscriber) -> None:
        self._subscriber = subscriber
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._reading: Future[Staged] | None = None

    def begin(self, manifest: WeightManifest, base: Path) -> None:
        """Starts to read; what was staged before is given up. Adapters are merged into the weights of `base`."""
        self._reading = self._thread.submit(self._read, manifest, base)

    def _read(self, manifest: WeightManifest, base: Path) -> Staged:
        tensors = self._subscriber.receive(manifest)
        if not is_adapter(tensors):
            return Staged(tensors=tensors, is_adapter=False)
        return Staged(tensors=merged_into(base, tensors), is_adapter=True)

    def poll(self) -> tuple[bool, str]:
        """Whether reading has ended, and why the version cannot be read whole (empty: it can).

        Raises what the reading raised, if that was no `WeightsError`.
        """
        assert self._reading is not None
        if not self._reading.done():
            return False, ""
        error = self._reading.exception()
        if isinstance(error, WeightsError):
            return True, str(error)
        if error is not None:
            raise error
        return True, ""

    def take(self) -> Staged:
        """The version that has been read, once."""
        assert self._reading is not None and self._reading.done()
        staged = self._reading.result()
        self._reading = None
        return staged
