"""The ground of a process, and which layouts of ranks there are."""

import re
import socket
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from async_rl.config.parallel import ParallelConfig
from async_rl.errors import ConfigError, ResourceError
from learner.megatron import runtime
from learner.megatron.runtime import Ground, lay_out
from learner.place import Place
from tests.learner.megatron.ranks import run_ranks


def test_a_ground_ends_with_its_block() -> None:
    with Ground(seed=0, num_threads=1):
        assert dist.get_world_size() == 1
    assert not dist.is_initialized()


def test_a_ground_seeds_the_process() -> None:
    drawn = []
    for _ in range(2):
        with Ground(seed=7, num_threads=1):
            drawn.append(torch.rand(1))
    assert torch.equal(*drawn)


def test_a_gpu_without_transformer_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "USE_CUDA", True)
    monkeypatch.setattr(runtime, "HAVE_TE", False)
    with pytest.raises(ResourceError, match="CUDA_VISIBLE_DEVICES="):
        Ground(seed=0, num_threads=1)


def test_data_parallelism_is_what_the_ranks_leave() -> None:
    assert lay_out(ParallelConfig(tp=2, pp=2), 12).dp == 3
    assert lay_out(ParallelConfig(tp=2, cp=2, dp=2), 8).dp == 2


def test_without_tensor_parallelism_there_is_no_sequence_parallelism() -> None:
    assert lay_out(ParallelConfig(tp=2, sequence_parallel=True), 2).sequence_parallel
    assert not lay_out(ParallelConfig(sequence_parallel=True), 2).sequence_parallel


@pytest.mark.parametrize(
    ("parallel", "place", "words"),
    [
        (ParallelConfig(tp=3), "learner.parallel", "tp·pp·cp = 3 with dp=0 does not fit 4 ranks"),
        (ParallelConfig(tp=2, dp=3), "learner.parallel", "tp·pp·cp = 2 with dp=3 does not fit 4 ranks"),
        (ParallelConfig(tp=8), "learner.parallel", "does not fit 4 ranks"),
        (ParallelConfig(vpp=2), "learner.parallel.vpp", "there is no pipeline to interleave"),
        (ParallelConfig(pp=2, ep=2, etp=2), "learner.parallel.ep", "ep·etp = 4 does not divide the 2 ranks"),
        (ParallelConfig(tp=2, cp=4), "learner.parallel", "tp·pp·cp = 8 with dp=0 does not fit 4 ranks"),
    ],
)
def test_ranks_that_cannot_stand_so_are_refused(parallel: ParallelConfig, place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        lay_out(parallel, 4)
    assert caught.value.place == place


@pytest.mark.integration
def test_ranks_meet_at_an_address() -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        host, port = probe.getsockname()

    def meet(place: Place) -> tuple[int, int]:
        address = replace(place, rendezvous=f"{host}:{port}")
        with Ground(ParallelConfig(pp=2), address, seed=0, num_threads=1) as ground:
            return ground.parallel.dp, parallel_state.get_pipeline_model_parallel_rank()

    assert run_ranks(4, meet) == [(2, 0), (2, 0), (2, 1), (2, 1)]
