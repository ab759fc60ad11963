"""Checksums of a checkpoint's files: written with them, compared before they are read.

    manifest.json      {"files": {"learner/__0_0.distcp": {"num_bytes": …, "xxh3": "…"}, …}}

Owns the manifest and what it says of a folder. Knows nothing of what the files hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

MANIFEST_FILE = "manifest.json"
CHUNK_BYTES = 1 << 24


class Checksum(msgspec.Struct, frozen=True, kw_only=True):
    """Of one file."""

    num_bytes: int
    xxh3: str
    """Of all its bytes, 64 bits in hexadecimal."""

    @classmethod
    def of(cls, path: Path) -> "Checksum":
        """Reads the file; an `OSError` where that cannot be done."""
        digest, num_bytes = xxhash.xxh3_64(), 0
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                num_bytes += len(chunk)
        return cls(num_bytes=num_bytes, xxh3=digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What is wrong with a folder."""

    file: str
    """Relative to the folder."""
    why: str

    def __str__(self) -> str:
        return f"{self.file} {self.why}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Checksums of the files below a folder, by their relative paths."""

    files: Mapping[str, Checksum]

    def write(self, folder: Path) -> None:
        """Writes it into the folder; an `OSError` where that cannot be done."""
        (folder / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> "Manifest | Damage":
        """That of a folder."""
        try:
            return msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=cls)
        except OSError as error:
            return Damage(file=MANIFEST_FILE, why=f"cannot be read ({error.strerror})")
        except msgspec.DecodeError as error:
            return Damage(file=MANIFEST_FILE, why=f"is damaged ({error})")

    def share(self, index: int, count: int) -> Sequence[str]:
        """The files that one of `count` readers compares, so that each has about as many bytes."""
        bytes_of, shares = [0] * count, [list[str]() for _ in range(count)]
        for name in sorted(self.files, key=lambda name: (-self.files[name].num_bytes, name)):
            least = bytes_of.index(min(bytes_of))
            bytes_of[least] += self.files[name].num_bytes
            shares[least].append(name)
        return shares[index]

    def torn(self, folder: Path) -> Damage | None:
        """The first file that is missing or of another size: what can be seen without reading."""
        for name, checksum in self.files.items():
            try:
                num_bytes = (folder / name).stat().st_size
            except OSError as error:
                return Damage(file=name, why=f"cannot be read ({error.strerror})")
            if num_bytes != checksum.num_bytes:
                return Damage(file=name, why=f"has {num_bytes} bytes and was written with {checksum.num_bytes}")
        return None

    def damage(self, folder: Path, names: Sequence[str]) -> Damage | None:
        """The first of these files that is not what was written."""
        for name in names:
            try:
                found = Checksum.of(folder / name)
            except OSError as error:
                return Damage(file=name, why=f"cannot be read ({error.strerror})")
            if found != self.files[name]:
                return Damage(file=name, why="is damaged: its checksum is not the one that was written")
        return None


def torn(folder: Path) -> Damage | None:
    """What can be seen of a folder's damage without reading its files."""
    manifest = Manifest.read(folder)
    return manifest if isinstance(manifest, Damage) else manifest.torn(folder)


def damage(folder: Path, *, index: int = 0, count: int = 1) -> Damage | None:
    """What one of `count` readers finds wrong with its share of a folder's files."""
    manifest = Manifest.read(folder)
    if isinstance(manifest, Damage):
        return manifest
    return manifest.torn(folder) or manifest.damage(folder, manifest.share(index, count))
