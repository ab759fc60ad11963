"""The maths of a step beside a peer's: verl 0.9.1's own functions, and torchrl's V-trace, on one thread in one process.

    python benchmarks/objectives.py [--holes] [--float-masks] [--samples 9] [--json FILE]

Median time of the processor, peak memory beyond the inputs (results included, in tensors of the batch's size), and
`ratio`, how many times as fast ours is; by function and shape, and its minimum over shapes by the function's name
alone. Both sides get the same batch, verl with masks as its trainer has them, and what they give is compared before any
time is taken. Makes the peers' environment the first time (benchmarks/.cache, 60 MB from PyPI). Exits 1 where results
disagree, 2 where the environment cannot be made.
"""

import sys
from pathlib import Path

import peer_environment
from objective_options import Options
from peer_environment import PeerEnvironmentError


def main() -> int:
    """Makes the environment and runs the contests in it."""
    Options.parse(__doc__)
    try:
        python = peer_environment.make()
    except PeerEnvironmentError as error:
        print(f"objectives: {error}", file=sys.stderr)
        return 2
    return peer_environment.run(python, Path(__file__).with_name("objective_times.py"), *sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
