"""The journal keeps what it was given, through a kill and past torn files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import xxhash

from async_rl.errors import ResourceError
from async_rl.journal import Journal
from tests.async_rl.groups import make_group

LATER = 1000
"""A version that no group here is newer than."""

WRITER = """
import sys
from pathlib import Path
from async_rl.journal import Journal
from tests.async_rl.groups import make_group
journal = Journal(Path(sys.argv[1]))
for group_id in range(10**9):
    journal.append(make_group(group_id, tuple(range(200))))
    print(group_id, flush=True)
"""


def test_what_is_appended_is_loaded_until_it_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    groups = [make_group(i, (0, i)) for i in range(5)]
    for group in reversed(groups):
        journal.append(group)
    assert journal.load(LATER) == groups
    journal.remove([1, 3, 99])
    assert journal.load(LATER) == [groups[0], groups[2], groups[4]]


def test_a_later_delivery_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(make_group(1, (0,)))
    journal.append(make_group(1, (4,)))
    assert journal.load(LATER) == [make_group(1, (4,))]


@pytest.mark.parametrize("size", [0, 3, 8, 50])
def test_a_torn_file_is_left_out_and_named(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path)
    journal.append(make_group(1))
    journal.append(make_group(2))
    torn = tmp_path / "0000000001.group"
    torn.write_bytes(torn.read_bytes()[:size])
    assert journal.load(LATER) == [make_group(2)]
    assert "0000000001.group is torn" in caplog.text
    assert not torn.exists()


def test_everything_that_was_appended_survives_kill_9(tmp_path: Path, repository: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=repository
    )
    assert writer.stdout is not None
    for _ in range(30):
        writer.stdout.readline()
    time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    last = int(rest[-1]) if rest else 29
    loaded = Journal(tmp_path).load(LATER)
    assert [g.group_id for g in loaded][: last + 1] == list(range(last + 1))
    assert all(g == make_group(g.group_id, tuple(range(200))) for g in loaded)


def test_a_folder_that_is_gone_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"(?s)cannot write a delivered group.*--resume auto"):
        Journal(tmp_path / "missing").append(make_group(0))


def test_what_a_kill_left_unfinished_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(make_group(1))
    (tmp_path / "0000000002.writing").write_bytes(b"half")
    assert journal.load(LATER) == [make_group(1)]
    assert [path.name for path in tmp_path.iterdir()] == ["0000000001.group"]


def test_a_whole_file_of_another_version_is_the_users_to_mend_and_stays(tmp_path: Path) -> None:
    payload = msgspec.msgpack.encode({"group_id": 1, "colour": "blue"})
    path = tmp_path / "0000000001.group"
    path.write_bytes(xxhash.xxh3_64_intdigest(payload).to_bytes(8, "little") + payload)
    with pytest.raises(ResourceError, match=r"(?s)cannot be read.*0000000001\.group.*version of async-rl"):
        Journal(tmp_path).load(LATER)
    assert path.exists()


def test_versions_that_a_restart_undid_stay_restated_at_the_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(make_group(0, (3, 5, 7)))
    journal.append(make_group(1, (4, 5)))
    at_five = [make_group(0, (3, 5, 3)), make_group(1, (4, 5))]
    assert journal.load(5) == at_five
    assert journal.load(5) == at_five, "once is enough"
    # Were version 7 still written there, it would now pass for the one that the new history made.
    assert journal.load(9) == at_five
