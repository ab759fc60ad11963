"""metrics.jsonl: a JSON object a record, for whoever would rather read than look.

    {"step": 3, "time_s": 1764576000.0, "subject": "", "scalars": {"reward/mean": 0.5}, "histograms": {…}}

JSON has no NaN: a number that is not finite is written as null.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from async_rl.disk import writing
from async_rl.tracking.record import Record


class JsonlTracker:
    """Appends; a resumed run goes on in the same file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b")
        if not _ends_a_line(self._file):
            # A full disk or a power cut left half a line, which must not swallow the next.
            self._file.write(b"\n")

    def write(self, records: Sequence[Record]) -> None:
        """Writes whole lines, so that a reader never sees half of one.

        Raises:
            ResourceError: the disk is full.
        """
        lines = [
            msgspec.json.encode(
                {
                    "step": r.step,
                    "time_s": r.time_s,
                    "subject": r.subject,
                    "scalars": {name: v if math.isfinite(v) else None for name, v in r.scalars.items()},
                    "histograms": r.histograms,
                }
            )
            for r in records
        ]
        with writing("metrics", self._path):
            self._file.write(b"".join(line + b"\n" for line in lines))
            self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def _ends_a_line(file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return True
    file.seek(size - 1)
    return file.read(1) == b"\n"
