"""A learner process to be interrupted: `python -m tests.learner.megatron.training MODEL CHECKPOINT (go-on|save)`.

`go-on` loads the checkpoint, takes one step and exports to CHECKPOINT/../after; `save` saves until it is killed,
with a line for each time.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from async_rl.config.learner import OptimizerConfig, Schedule
from async_rl.config.model import ModelConfig
from learner.backend import StepResult
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences

CONFIG = OptimizerConfig(lr=1e-2, schedule=Schedule.cosine, warmup_steps=3, weight_decay=0.1)


@contextmanager
def open_learner(model: Path, config: OptimizerConfig = CONFIG) -> Iterator[MegatronBackend]:
    """A backend of a run of 10 steps."""
    with Ground(seed=0, num_threads=1) as ground:
        yield MegatronBackend(ground, ModelConfig(path=str(model)), config, num_steps=10)


def take_step(backend: MegatronBackend, index: int) -> StepResult:
    """The step with this index: its batch is the same in every process."""
    rng = np.random.default_rng(index)
    packed = PackedSequences.pack([rng.integers(0, 67, n) for n in (9, 20, 13)])
    return backend.step([packed], lambda scores, _: -scores.logprobs.mean(), temperature=1.0)


def main(model: Path, checkpoint: Path, action: str) -> None:
    """See the module."""
    with open_learner(model) as backend:
        if action == "go-on":
            backend.load(checkpoint)
            print(take_step(backend, 3))
            backend.export(checkpoint.parent / "after")
            return
        take_step(backend, 0)
        number = 0
        while True:
            backend.snapshot().write(checkpoint / str(number))
            number += 1
            print("saved", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
