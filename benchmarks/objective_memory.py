"""The memory of every contest of `objectives.py`: prints a JSON object, function and shape → [ours, peer] tensors.

A process of its own, with the environment that `allocations` asks for, and in it one for each contest, so that none
finds what another left.
"""

import json
import multiprocessing
from dataclasses import replace

import torch
from allocations import peak_bytes, tensors
from objective_contests import each
from objective_options import Options


def measure(options: Options) -> tuple[str, list[float]]:
    """Of one function on one shape."""
    ((name, batch, contest),) = each(options)
    return name, [tensors(peak_bytes(side), batch.mask) for side in (contest.ours, contest.peer)]


def main() -> None:
    """Measures all that the command line asks for."""
    torch.set_num_threads(1)
    options = Options.parse(None)
    single = [
        replace(options, shapes=(shape,), functions=(function,))
        for shape in options.shapes
        for function in options.functions
    ]
    # Forked, so that what is slow to import is there already.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        print(json.dumps(dict(pool.map(measure, single, chunksize=1))))


if __name__ == "__main__":
    main()
