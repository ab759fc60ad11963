"""All that training goes on from, at one moment: models, small values, and the manifest of their files.

    .writing-00000012/learner/…  critic/…  kl.json  manifest.json

Owns what the learner writes of a checkpoint; the loop's part comes beside it when this is whole. Knows no format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from async_rl.checksums import Checksum, Manifest
from async_rl.disk import writing
from learner.backend import Snapshot


@dataclass(frozen=True, kw_only=True)
class TrainingSnapshot:
    """One rank's part."""

    models: Mapping[str, Snapshot]
    """By the folder that each is written to."""
    is_speaker: bool
    """Whether this rank writes what is of all ranks."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Of all ranks, by name."""

    def write(self, folder: Path) -> None:
        """Writes it; in any thread, by all ranks at once. The manifest comes last.

        Raises:
            ResourceError: the disk is full, or the folder cannot be written.
        """
        checksums: dict[str, Checksum] = {}
        for name, model in self.models.items():
            checksums |= {f"{name}/{file}": checksum for file, checksum in model.write(folder / name).items()}
        if not self.is_speaker:
            return
        with writing("a checkpoint", folder):
            for name, content in self.files.items():
                (folder / name).write_bytes(content)
                digest = xxhash.xxh3_64_hexdigest(content)
                checksums[name] = Checksum(num_bytes=len(content), xxh3=digest)
            Manifest(files=checksums).write(folder)
