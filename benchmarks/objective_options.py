"""What `objectives.py` is asked, read alike by the script that makes the peers' environment and the one inside."""

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    has_holes: bool
    num_samples: int
    shapes: tuple[tuple[int, int], ...]
    """Sequences, tokens."""
    only: tuple[str, ...]
    """Functions; empty: all."""
    json: Path | None

    @classmethod
    def parse(cls, description: str | None) -> "Options":
        """Of this process."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--holes", action="store_true", help="responses with turns of an environment in them")
        parser.add_argument("--samples", type=int, default=9, help="timings of each side; the median counts")
        parser.add_argument(
            "--shapes", nargs="+", type=_shape, default=[(512, 2048), (1024, 8192)], help="as 512x2048: rows x tokens"
        )
        parser.add_argument("--only", nargs="+", default=[], help="functions by name, as gae grpo")
        parser.add_argument("--json", type=Path, help="where to write the outcome as data")
        given = parser.parse_args()
        return cls(
            has_holes=given.holes,
            num_samples=given.samples,
            shapes=tuple(given.shapes),
            only=tuple(given.only),
            json=given.json,
        )


def _shape(text: str) -> tuple[int, int]:
    rows, _, width = text.partition("x")
    return int(rows), int(width)
