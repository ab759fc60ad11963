"""Scratch folders go with their process, or with the next one."""

import subprocess
import sys
from pathlib import Path

from generators.scratch import ROOT, scratch_folder

HOLDER = """
from generators.scratch import scratch_folder
import time
with scratch_folder() as folder:
    (folder / "socket").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_is_gone_at_the_end() -> None:
    with scratch_folder() as folder:
        assert folder.parent == ROOT
        assert len(str(folder)) + len("/01234567-89ab-cdef-0123-456789abcdef") <= 107
        (folder / "inner").mkdir()
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_by_the_next_but_not_what_is_in_use() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with scratch_folder() as ours:
            assert (theirs / "socket").exists() and ours != theirs
        process.kill()
        process.wait()
        assert theirs.exists()
        with scratch_folder():
            assert not theirs.exists()
