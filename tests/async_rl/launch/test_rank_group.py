"""Whose end counts when ranks that compute together end: calls as Ray's actors answer them, without Ray."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayTaskError

from async_rl.launch import rank_group
from async_rl.launch.rank_group import RankGroup

Answer = Callable[[], Awaitable[object]]


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Actors that were killed; nobody is waited for long."""
    actors: list[object] = []
    monkeypatch.setattr("ray.kill", actors.append)
    monkeypatch.setattr(rank_group, "SETTLE_S", 0.1)
    monkeypatch.setattr(rank_group, "END_TIMEOUT_S", 0.1)
    return actors


def group(*runs: Answer) -> RankGroup:
    """Ranks that have begun and run so."""
    made = RankGroup("learner", object, seats=[], num_gpus=0)

    async def meet() -> str:
        return "host:1"

    made.actors = [
        cast(
            ActorHandle,
            SimpleNamespace(
                meeting_place=SimpleNamespace(remote=meet),
                run=SimpleNamespace(remote=lambda run=run, **_: run()),
            ),
        )
        for run in runs
    ]
    return made


def ends(error: Exception | None = None, *, after_s: float = 0.0) -> Answer:
    async def run() -> None:
        await asyncio.sleep(after_s)
        if error is not None:
            raise error

    return run


async def run(ranks: RankGroup) -> dict[str, str]:
    """What became of the ranks."""
    failures = await ranks.run(lambda rank, rendezvous: {"rank": rank, "rendezvous": rendezvous})
    return {name: type(error).__name__ for name, error in failures.items()}


LOST = RayTaskError("run", "traceback", RuntimeError("Connection closed by peer"))


async def test_ranks_that_leave_have_not_failed_however_far_apart() -> None:
    assert await run(group(ends(after_s=0.3), ends())) == {}


async def test_all_who_end_soon_after_the_first_failure_are_heard() -> None:
    ranks = group(ends(LOST), ends(ActorDiedError(), after_s=0.02), ends(after_s=60.0))
    assert await run(ranks) == {"learner-0": "RayTaskError", "learner-1": "ActorDiedError"}


async def test_those_that_hang_are_killed_with_the_others(killed: list[object]) -> None:
    ranks = group(ends(ActorDiedError()), ends(after_s=60.0))
    await run(ranks)
    await ranks.end()
    assert killed == ranks.actors


async def test_a_first_rank_that_is_dead_before_they_meet() -> None:
    ranks = group(ends(), ends())

    async def die() -> str:
        raise ActorDiedError

    ranks.actors[0].meeting_place.remote = die
    assert await run(ranks) == {"learner-0": "ActorDiedError"}


async def test_what_is_no_end_of_a_rank_is_raised() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        await run(group(ends(TypeError("cannot be sent"))))
