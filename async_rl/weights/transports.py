"""Which transport carries a run's weights: the one table of them.

Owns how publishers and subscribers are chosen. Knows nothing of how they work.
"""

from pathlib import Path

import torch

from async_rl.config.loop import Transport, WeightsConfig
from async_rl.errors import WeightsError
from async_rl.protocol import WeightManifest
from async_rl.weights.file import FileWeightPublisher, FileWeightSubscriber, remove_versions
from async_rl.weights.shm import ShmWeightPublisher, ShmWeightSubscriber
from async_rl.weights.slots import remove_leftovers
from async_rl.weights.transport import WeightPublisher, WeightSubscriber

SUBSCRIBERS: dict[str, type[ShmWeightSubscriber] | type[FileWeightSubscriber]] = {
    Transport.shm: ShmWeightSubscriber,
    Transport.file: FileWeightSubscriber,
}


def open_publisher(weights: WeightsConfig, *, run_id: str, run_folder: Path) -> WeightPublisher:
    """The learner's end.

    Args:
        weights: the transport and its options.
        run_id: names shared memory.
        run_folder: of the run; files lie in it unless `weights.folder` says otherwise.
    """
    if weights.transport is Transport.file:
        return FileWeightPublisher(version_folder(weights, run_folder))
    return ShmWeightPublisher(run_id)


def remove_published(weights: WeightsConfig, *, run_id: str, run_folder: Path) -> None:
    """Removes what a run has published, for when all its processes have ended, however they did."""
    remove_leftovers(run_id)
    if weights.transport is Transport.file:
        remove_versions(version_folder(weights, run_folder))


def version_folder(weights: WeightsConfig, run_folder: Path) -> Path:
    """Where the versions of a run lie as files: a folder of its own."""
    return Path(weights.folder).absolute() / run_folder.name if weights.folder else run_folder / "weights"


class AnyWeightSubscriber:
    """A generator's end, for whatever transport a manifest names; a `WeightSubscriber`."""

    def __init__(self) -> None:
        self._open: dict[str, WeightSubscriber] = {}

    def receive(self, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
        """See `WeightSubscriber`."""
        name = manifest.transport
        if name not in SUBSCRIBERS:
            raise WeightsError(f"version {manifest.version} travels by {name}, which nobody here can read")
        if name not in self._open:
            self._open[name] = SUBSCRIBERS[name]()
        return self._open[name].receive(manifest)

    def close(self) -> None:
        """See `WeightSubscriber`."""
        for subscriber in self._open.values():
            subscriber.close()
        self._open.clear()
