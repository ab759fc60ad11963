"""A reward function's process answers, or its death is seen at once, whatever it does."""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from async_rl.reward import Reward
from generators.reward_call import RewardCall, RewardFailed
from generators.reward_pool import RewardPool
from generators.reward_process import ProcessEnded
from generators.reward_reader import RewardReader
from tests.generators import reward_functions


@pytest.fixture
async def pool() -> AsyncIterator[RewardPool]:
    pool = RewardPool(f"{reward_functions.__file__}:misbehave", RewardReader(), num_workers=1)
    yield pool
    pool.close()


async def make(pool: RewardPool, prompt: str, *, num_tokens: int = 1, timeout_s: float = 30.0) -> Reward | RewardFailed:
    call = RewardCall(prompt=prompt, response="", answer="", metadata={}, num_tokens=num_tokens, tokens=None)
    return await pool.make(call, timeout_s)


def children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


async def test_long_texts_and_long_results_pass(pool: RewardPool) -> None:
    assert await make(pool, "x" * 3_000_000) == Reward(total=1.0)
    assert await make(pool, "long", num_tokens=300_000) == Reward(total=0.0, per_token=[0.0] * 300_000)


async def test_a_process_that_is_killed_between_two_calls_costs_none(pool: RewardPool) -> None:
    await make(pool, "true")
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    while children():
        await asyncio.sleep(0.01)
    assert await make(pool, "true") == Reward(total=1.0)


async def test_a_ctrl_c_does_not_reach_it(pool: RewardPool) -> None:
    pid = int(await total(pool, "pid"))
    os.kill(pid, signal.SIGINT)
    assert await total(pool, "pid") == pid


async def total(pool: RewardPool, prompt: str) -> float:
    reward = await make(pool, prompt)
    assert isinstance(reward, Reward)
    return reward.total


async def test_a_death_is_seen_at_once_though_a_child_of_the_process_lives_on(pool: RewardPool) -> None:
    await make(pool, "true")
    started = time.monotonic()
    with pytest.raises(ProcessEnded) as ended:
        await make(pool, "orphan")
    assert ended.value.exit_code == 5
    assert time.monotonic() - started < 5, "the child sleeps for 10 s with the pipe open"


async def test_a_call_that_is_cancelled_while_the_process_loads_leaves_it_loading(pool: RewardPool) -> None:
    before = children()
    call = asyncio.create_task(make(pool, "true"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await make(pool, "true") == Reward(total=1.0)
    assert children() == before


async def test_a_closed_pool_answers_nobody_and_begins_nothing(pool: RewardPool) -> None:
    await make(pool, "true")
    calls = [asyncio.create_task(make(pool, "sleep")) for _ in range(3)]
    await asyncio.sleep(0.05)
    pool.close()
    pool.close()
    for call in calls:
        with pytest.raises(ProcessEnded):
            await asyncio.wait_for(call, 5)
    assert not children()
