"""Backends on a folder of the test, closed after it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from async_rl.config.schema import Dtype, ModelConfig, OptimizerConfig
from learner.megatron.backend import MegatronBackend

OpenBackend = Callable[..., MegatronBackend]


@pytest.fixture
def open_backend(tmp_path: Path) -> Iterator[OpenBackend]:
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
            backend = MegatronBackend(model, optimizer, num_steps=num_steps, seed=0, num_threads=1)
            stack.callback(backend.close)
            return backend

        yield open_
