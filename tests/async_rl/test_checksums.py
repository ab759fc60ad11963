"""Checksums: whatever happens to a file is seen, and named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_rl.checksums import MANIFEST_FILE, Checksum, Manifest, damage, torn


def written(folder: Path) -> Path:
    """A folder of three files, with its manifest."""
    (folder / "learner").mkdir(parents=True)
    contents = {"learner/a": b"0123456789" * 10, "learner/b": b"", "kl.json": b"{}"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    Manifest(files={name: Checksum.of(folder / name) for name in contents}).write(folder)
    return folder


def test_a_whole_folder_has_no_damage(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "more").write_text("is nobody's business")
    assert torn(folder) is None and damage(folder) is None


@pytest.mark.parametrize("name", ["learner/a", "learner/b", "kl.json", MANIFEST_FILE])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path)
    (folder / name).unlink()
    for found in (torn(folder), damage(folder)):
        assert str(found) == f"{name} cannot be read (No such file or directory)"


def test_a_file_that_was_cut_is_seen_without_reading(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "learner" / "a").write_bytes(b"0123")
    assert str(torn(folder)) == "learner/a has 4 bytes and was written with 100"


@pytest.mark.parametrize("place", [0, 57, 99])
def test_one_flipped_bit_is_seen(tmp_path: Path, place: int) -> None:
    folder = written(tmp_path)
    content = bytearray((folder / "learner" / "a").read_bytes())
    content[place] ^= 1
    (folder / "learner" / "a").write_bytes(content)
    assert torn(folder) is None
    assert str(damage(folder)) == "learner/a is damaged: its checksum is not the one that was written"


def test_a_manifest_that_is_no_json_is_damage(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / MANIFEST_FILE).write_bytes((folder / MANIFEST_FILE).read_bytes()[:40])
    assert str(torn(folder)).startswith("manifest.json is damaged")


@given(sizes=st.lists(st.integers(0, 1000), max_size=12), count=st.integers(1, 5))
def test_readers_share_all_files_and_no_file_twice(sizes: list[int], count: int) -> None:
    manifest = Manifest(files={str(i): Checksum(num_bytes=n, xxh3="") for i, n in enumerate(sizes)})
    shares = [manifest.share(index, count) for index in range(count)]
    assert sorted(name for share in shares for name in share) == sorted(manifest.files)
    loads = [sum(sizes[int(name)] for name in share) for share in shares]
    assert max(loads) <= sum(sizes) / count + max(sizes, default=0)
