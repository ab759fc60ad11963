"""Reads a published version beside generation and holds it until the engine takes it.

Owns the thread that copies and verifies. Knows no engine and no model; runs in the process that has the model.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from async_rl.errors import WeightsError
from async_rl.protocol import WeightManifest
from async_rl.weights.transport import WeightSubscriber

NamedTensors = list[tuple[str, torch.Tensor]]
"""Hugging Face names and tensors, on the CPU."""


class WeightStage:
    """One version at a time.

    stage.begin(manifest)
    done, problem = stage.poll()        # until done; a problem in words means that there is nothing to take
    tensors = stage.take()              # valid until the next `begin`
    """

    def __init__(self, subscriber: WeightSubscriber) -> None:
        self._subscriber = subscriber
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._reading: Future[NamedTensors] | None = None

    def begin(self, manifest: WeightManifest) -> None:
        """Starts to read; what was staged before is given up."""
        self._reading = self._thread.submit(self._subscriber.receive, manifest)

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

    def take(self) -> NamedTensors:
        """The version that has been read, once."""
        assert self._reading is not None and self._reading.done()
        tensors = self._reading.result()
        self._reading = None
        return tensors
