"""Whoever holds a lifeline ends with its parent, however that one ended."""

import os
import signal
import subprocess
import sys
import time

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import os, sys, time
from generators.lifeline import end_with
end_with(int(sys.argv[1]))
print("ready", os.getpid(), flush=True)
time.sleep(60)
''', str(os.getpid())])
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        word, pid = parent.stdout.readline().split()
        assert word == "ready" and is_running(int(pid))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 10
        while is_running(int(pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(int(pid))


def test_a_parent_that_has_ended_already_ends_the_child_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    script = f"from generators.lifeline import end_with; import time; end_with({gone.pid}); time.sleep(60)"
    assert subprocess.run([sys.executable, "-c", script], timeout=30).returncode == 1
