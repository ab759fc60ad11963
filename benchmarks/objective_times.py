"""The contests of `objectives.py`, run inside the peers' environment: time here, memory in a process beside."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import torch
from allocations import ENVIRONMENT
from contest import Result, hold
from objective_contests import each
from objective_options import Options
from report import Report, Row

Peaks = dict[str, tuple[float, float]]


def measure_memory() -> Peaks:
    """[ours, peer] tensors of the batch's size, by function and shape."""
    script = Path(__file__).with_name("objective_memory.py")
    command = [sys.executable, str(script), *sys.argv[1:]]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **ENVIRONMENT})
    peaks: Peaks = json.loads(done.stdout)
    return peaks


def row(name: str, result: Result, peaks: Peaks) -> Row:
    """A line of the table."""
    function, _, shape = name.rpartition("_")
    ours, peer = peaks[name]
    return {
        "function": function,
        "shape": shape,
        "ours ms": 1e3 * result.ours_s,
        "peer ms": 1e3 * result.peer_s,
        "ratio": result.ratio,
        "ours peak": ours,
        "peer peak": peer,
        "agree": result.disagreement or "yes",
    }


def main() -> int:
    """Holds every contest on every shape."""
    options = Options.parse(None)
    torch.set_num_threads(1)
    print("measuring memory", flush=True)
    peaks = measure_memory()
    results: dict[str, Result] = {}
    smallest = {name: math.inf for name in options.functions}
    for name, batch, contest in each(options):
        print(f"timing {name}", flush=True)
        results[name] = hold(contest, batch.mask, num_samples=options.num_samples)
        smallest[contest.name] = min(smallest[contest.name], results[name].ratio)
    ratios = {**smallest, **{name: result.ratio for name, result in results.items()}}
    rows = [row(name, result, peaks) for name, result in results.items()]
    holes = ", with turns of an environment" if options.has_holes else ""
    Report(
        title=f"objectives beside verl and torchrl{holes}; peaks in tensors of the batch", ratios=ratios, rows=rows
    ).publish(options.json)
    return 1 if any(result.disagreement for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
