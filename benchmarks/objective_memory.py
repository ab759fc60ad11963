"""The memory of every contest of `objectives.py`: prints a JSON object, function and shape → [ours, peer] tensors.

A process of its own, with the environment that `allocations` asks for.
"""

import json

import torch
from allocations import peak_bytes, tensors
from objective_contests import each
from objective_options import Options


def main() -> None:
    """Measures all that the command line asks for."""
    torch.set_num_threads(1)
    peaks = {
        name: [tensors(peak_bytes(side), batch.mask) for side in (contest.ours, contest.peer)]
        for name, batch, contest in each(Options.parse(None))
    }
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
