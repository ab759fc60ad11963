"""What `objectives.py` is asked, read alike by the script that makes the peers' environment and the one inside."""

import argparse
from dataclasses import dataclass
from pathlib import Path

FUNCTIONS = ("gae", "reinforce_plus_plus", "correction", "ppo_loss", "grpo", "vtrace")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    has_holes: bool
    has_float_masks: bool
    num_samples: int
    shapes: tuple[tuple[int, int], ...]
    """Sequences, tokens."""
    functions: tuple[str, ...]
    json: Path | None

    @classmethod
    def parse(cls, description: str | None) -> "Options":
        """Of this process."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--holes", action="store_true", help="responses with turns of an environment in them")
        parser.add_argument(
            "--float-masks",
            action="store_true",
            help="give verl float32 masks, which suit its functions better than those of its own trainer",
        )
        parser.add_argument("--samples", type=int, default=9, help="timings of each side; the median counts")
        parser.add_argument(
            "--shapes", nargs="+", type=_shape, default=[(512, 2048), (1024, 8192)], help="as 512x2048: rows x tokens"
        )
        parser.add_argument("--only", nargs="+", choices=FUNCTIONS, default=FUNCTIONS, help="some functions")
        parser.add_argument("--json", type=Path, help="where to write the outcome as data")
        given = parser.parse_args()
        return cls(
            has_holes=given.holes,
            has_float_masks=given.float_masks,
            num_samples=given.samples,
            shapes=tuple(given.shapes),
            functions=tuple(given.only),
            json=given.json,
        )


def _shape(text: str) -> tuple[int, int]:
    rows, _, width = text.partition("x")
    if not (rows.isdecimal() and width.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text} is no shape such as 512x2048")
    return int(rows), int(width)
