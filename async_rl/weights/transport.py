"""The seam between whoever has new weights and whoever samples with them.

Owns what a transport of weights promises. Must not know how one keeps the promise, nor who calls it.

A publisher never waits for a reader: a reader that is slow, dead or late gets a `WeightsError` for
the version that it missed, and takes a newer one. A version is received whole or not at all.
"""

from collections.abc import Iterable
from typing import Protocol

import torch

from async_rl.protocol import WeightManifest


class WeightPublisher(Protocol):
    """The learner's end. One thread at a time."""

    def publish(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, gather_s: float = 0.0
    ) -> WeightManifest:
        """Makes `version` readable and returns what readers need to know.

        `tensors` may be lazy: the time spent in it is added to `gather_s` (what the caller has already
        spent to bring parameters into Hugging Face form) and reported in the manifest. Tensors are read
        before this returns and may change afterwards.

        Raises `ResourceError` where the machine has no room, `WeightsError` for tensors that the
        transport cannot carry; the versions published before then stay as readable as they were.
        """
        ...

    def close(self) -> None:
        """Gives back what the transport holds; published versions are gone. May be called twice."""
        ...


class WeightSubscriber(Protocol):
    """A generator's end. One thread at a time."""

    def receive(self, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
        """The tensors of a published version, verified, in the manifest's order, on the CPU.

        They are copies in buffers of the subscriber's own, valid until the next `receive` or `close`.

        Raises `WeightsError` where the version is missing, overwritten, truncated or corrupt.
        """
        ...

    def close(self) -> None:
        """Gives the buffers back. May be called twice."""
        ...
