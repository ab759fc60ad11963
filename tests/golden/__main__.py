"""Checks a folder of golden vectors: `python -m tests.golden FOLDER`.

Prints a line per kind and every failure with its largest error. Exits 1 on any failure, 2 where the folder is none.
"""

import argparse
import sys
from pathlib import Path

from tests.golden.adapters import ADAPTERS
from tests.golden.checker import HEADER, check, summarise
from tests.golden.folder import FolderError, GoldenFolder


def main(path: Path) -> int:
    """Checks the folder; the exit status."""
    try:
        cases = GoldenFolder(path).cases
        if not cases:
            raise FolderError(f"{path} has no cases")
        verdicts = [check(case, ADAPTERS) for case in cases]
    except FolderError as error:
        print(f"golden: {error}", file=sys.stderr)
        return 2
    print(HEADER)
    for summary in summarise(verdicts):
        print(summary)
    failures = [verdict for verdict in verdicts if verdict.complaints]
    for verdict in failures:
        print(f"FAILED {verdict.case.kind} {verdict.case.name} {verdict.case.id}")
        for complaint in verdict.complaints:
            print(f"    {complaint}")
    print(f"{len(verdicts) - len(failures)} of {len(verdicts)} cases passed in {path}")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="has manifest.json, and differs.json where a peer is wrong")
    sys.exit(main(parser.parse_args().folder))
