"""One ground for every backend of a process."""

import pytest
import torch
import torch.distributed as dist

from async_rl.errors import ResourceError
from learner.megatron import runtime


def test_the_ground_lasts_until_its_last_user_leaves() -> None:
    runtime.acquire(seed=0, num_threads=1)
    runtime.acquire(seed=0, num_threads=1)
    runtime.release()
    assert dist.is_initialized()
    runtime.release()
    assert not dist.is_initialized()


def test_the_first_user_seeds_and_the_second_does_not() -> None:
    runtime.acquire(seed=7, num_threads=1)
    first = torch.rand(1)
    runtime.acquire(seed=7, num_threads=1)
    assert not torch.equal(torch.rand(1), first)
    runtime.release()
    runtime.release()
    runtime.acquire(seed=7, num_threads=1)
    assert torch.equal(torch.rand(1), first)
    runtime.release()


def test_a_gpu_without_transformer_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "USE_CUDA", True)
    monkeypatch.setattr(runtime, "HAVE_TE", False)
    with pytest.raises(ResourceError, match="CUDA_VISIBLE_DEVICES="):
        runtime.acquire(seed=0, num_threads=1)
