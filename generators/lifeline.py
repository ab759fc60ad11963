"""A process that ends with the one that started it, also where that one was killed.

Owns the watch over a parent. Needs no polling: the kernel says when a process has ended.
"""

import os
import select
import threading


def end_with(parent_pid: int) -> None:
    """Ends this process at once when `parent_pid` has ended. Linux 5.3 or later."""
    try:
        parent = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_wait_and_end, args=(parent,), name="lifeline", daemon=True).start()


def _wait_and_end(parent: int) -> None:
    watch = select.poll()
    watch.register(parent, select.POLLIN)
    watch.poll()
    os._exit(1)
