"""Ranks that work, fail, die and hang."""

import os
import time
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist

from async_rl.config.parallel import ParallelConfig
from learner.megatron.runtime import Ground
from learner.place import Place
from tests.learner.megatron import ranks
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration


def test_results_come_in_the_order_of_ranks() -> None:
    def meet(place: Place, addend: int) -> tuple[int, int]:
        with Ground(ParallelConfig(tp=2), place, seed=0, num_threads=1):
            total = torch.tensor(place.rank + addend)
            dist.all_reduce(total)
            return place.rank, int(total)

    assert run_ranks(2, meet, 10) == [(0, 21), (1, 21)]


def test_a_rank_that_fails_ends_the_test_with_what_it_said() -> None:
    def fail(place: Place) -> None:
        with Ground(place=place, seed=0, num_threads=1):
            if place.rank == 1:
                raise ValueError("of this and that")
            dist.barrier()

    with pytest.raises(AssertionError, match=r"rank 1: (.|\n)*ValueError: of this and that"):
        run_ranks(2, fail)


def test_a_rank_that_dies_ends_the_others_at_once() -> None:
    def die(place: Place) -> None:
        with Ground(place=place, seed=0, num_threads=1):
            if place.rank == 1:
                os._exit(7)
            dist.barrier()

    started = time.monotonic()
    with pytest.raises(AssertionError, match=r"rank 0: Traceback(.|\n)*rank 1: died with exit code 7"):
        run_ranks(2, die)
    assert time.monotonic() - started < 30


def test_a_rank_that_hangs_tells_where(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep_for_ever(place: Place) -> NoReturn:
        while True:
            time.sleep(1)

    monkeypatch.setattr(ranks, "TIMEOUT_S", 0.5)
    with pytest.raises(AssertionError, match=r"rank 0: did not end(.|\n)* in sleep_for_ever"):
        run_ranks(1, sleep_for_ever)
