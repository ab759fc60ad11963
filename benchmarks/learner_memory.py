"""Peak memory of the learner's benchmark: of weights, gradients, optimizer and all that a pass takes beside them.

Each in a process of its own. As a program it reads cases from its input and prints MiB, both JSON.
"""

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from allocations import ENVIRONMENT, peak_bytes
from learner_batches import spreads
from learner_models import make
from learner_ours import OurLearner
from learner_peer import TransformersLearner
from learner_sides import OPTIMIZER, OURS, our_side, peer_side


class Case(NamedTuple):
    """What to measure."""

    size: str
    batch: str
    pass_name: str
    side: str


def measure(cases: Sequence[Case]) -> dict[Case, float]:
    """MiB of each."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(cases),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    return dict(zip(cases, json.loads(done.stdout), strict=True))


def _peak_mib(case: Case) -> float:
    (batch,) = (batch for batch in spreads() if batch.name == case.batch)
    with tempfile.TemporaryDirectory(prefix="learner-") as name:
        folder = Path(name)
        make(folder, case.size)

        def train() -> None:
            # The optimizer's state comes with the first step, and is there in the second.
            if case.side in OURS:
                with OurLearner(folder, OPTIMIZER) as ours:
                    for _ in range(2):
                        our_side(batch, ours, case.side).call(case.pass_name)()
            else:
                peer = TransformersLearner(folder, OPTIMIZER)
                for _ in range(2):
                    peer_side(batch, peer, case.side).call(case.pass_name)()

        return peak_bytes(train) / 2**20


def main() -> None:
    """Measures what the input asks for."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    cases = [Case(*case) for case in json.load(sys.stdin)]
    # Forked, so that what is slow to import is there already.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        print(json.dumps(pool.map(_peak_mib, cases, chunksize=1)))


if __name__ == "__main__":
    main()
