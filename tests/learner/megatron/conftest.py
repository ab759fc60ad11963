"""Backends on a folder of the test, closed after it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import Dtype, ModelConfig
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground

OpenBackend = Callable[..., MegatronBackend]


@pytest.fixture
def ground() -> Iterator[Ground]:
    """Of a single rank."""
    with Ground(seed=0, num_threads=1) as ground:
        yield ground


@pytest.fixture
def open_backend(ground: Ground, tmp_path: Path) -> Iterator[OpenBackend]:
    """(optimizer, *, folder="model", num_steps=10, dtype=float32) → a backend on tmp_path/folder."""
    with ExitStack() as stack:

        def open_(
            optimizer: OptimizerConfig | None,
            *,
            folder: str = "model",
            num_steps: int = 10,
            dtype: Dtype = Dtype.float32,
        ) -> MegatronBackend:
            model = ModelConfig(path=str(tmp_path / folder), dtype=dtype)
            backend = MegatronBackend(ground, model, optimizer, num_steps=num_steps)
            stack.callback(backend.close)
            return backend

        yield open_
