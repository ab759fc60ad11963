"""A failed call is never a reward: it is named, counted, and hurts no later call."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator

import pytest

from async_rl.config.reward import RewardConfig
from async_rl.errors import RewardError
from async_rl.protocol import Prompt
from async_rl.reward import Reward
from generators.reward import DEADLY_PROMPTS, RewardRunner
from generators.reward_call import RewardFailed
from generators.reward_reader import RewardReader
from tests.generators import reward_functions


def make_runner(name: str, *, timeout_s: float = 30.0, max_concurrent: int = 64) -> RewardRunner:
    function = f"{reward_functions.__file__}:{name}"
    config = RewardConfig(function=function, timeout_s=timeout_s, max_concurrent=max_concurrent)
    return RewardRunner(config, RewardReader(), lambda token_ids: "".join(map(str, token_ids)))


@pytest.fixture(scope="module")
def in_process() -> Iterator[RewardRunner]:
    """One process for all tests, since starting one is slow; a test may end it."""
    runner = make_runner("misbehave", timeout_s=0.5)
    yield runner
    runner.close()


@pytest.fixture
def on_loop() -> RewardRunner:
    return make_runner("misbehave_async", timeout_s=0.05)


async def reward_of(runner: RewardRunner, prompt: str, **metadata: int) -> Reward:
    """Of the response "4"."""
    return await runner.score(Prompt(prompt_id=0, text=prompt, token_ids=[0], answer="4", metadata=dict(metadata)), [4])


async def score(runner: RewardRunner, prompt: str, **metadata: int) -> float:
    return (await reward_of(runner, prompt, **metadata)).total


async def test_a_plain_function_runs_in_another_process(in_process: RewardRunner) -> None:
    pids = {int(await score(in_process, "pid")) for _ in range(3)}
    assert pids == {child.pid for child in multiprocessing.active_children()}


async def test_metadata_arrives(in_process: RewardRunner, on_loop: RewardRunner) -> None:
    assert await score(in_process, "metadata", level=3) == 3.0
    assert await score(on_loop, "metadata", level=3) == 3.0


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("raise", r"KeyError: 'no such key' \(reward_functions.py:\d+\)"),
        ("stubborn", r"StubbornError: stubborn"),
        ("nan", "returned nan"),
        ("inf", "returned inf"),
        ("none", "returned None, which is not a number"),
        ("text", "returned '1.0', which is not a number; return a number, a list"),
        ("two tokens", "returned 2 rewards for a response of 1 tokens; return one for each of `tokens`"),
    ],
)
async def test_a_bad_call_says_why_and_is_counted(
    in_process: RewardRunner, on_loop: RewardRunner, prompt: str, reason: str
) -> None:
    for runner in (in_process, on_loop):
        errors, timeouts = runner.errors, runner.timeouts
        with pytest.raises(RewardFailed, match=reason):
            await score(runner, prompt)
        assert (runner.errors, runner.timeouts) == (errors + 1, timeouts)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("die", r"reward_functions.py:misbehave ended its process with exit code -9 \(Killed\)"),
        ("leave", r"ended its process with exit code 3"),
        ("exit", r"SystemExit: 3 \(reward_functions.py:\d+\)"),
    ],
)
async def test_a_process_that_ends_costs_one_call(in_process: RewardRunner, prompt: str, reason: str) -> None:
    errors = in_process.errors
    with pytest.raises(RewardFailed, match=reason):
        await score(in_process, prompt)
    assert in_process.errors == errors + 1
    assert await score(in_process, "true") == 1.0


async def test_a_function_that_always_ends_its_process_is_the_users_mistake_and_a_deadly_prompt_is_not() -> None:
    runner = make_runner("lethal")
    try:
        for _ in range(DEADLY_PROMPTS):
            with pytest.raises(RewardFailed, match="exit code 7"):
                await score(runner, "die of one prompt")
        assert await score(runner, "live") == 1.0
        for number in range(1, DEADLY_PROMPTS):
            with pytest.raises(RewardFailed):
                await score(runner, f"die {number}")
        with pytest.raises(RewardError, match=r"lethal ended its process for 4 prompts in a row.* exit code 7"):
            await score(runner, "die again")
    finally:
        runner.close()


async def test_failures_are_told_once_by_their_cause(in_process: RewardRunner) -> None:
    in_process.take_failures()
    for prompt in ("raise", "raise", "none", "sleep"):
        with pytest.raises(RewardFailed):
            await score(in_process, prompt)
    told = in_process.take_failures()
    assert [f.count for f in told] == [2, 1, 1]
    assert [f.cause.split(" (")[0] for f in told] == ["KeyError", "no reward", "longer than 0.5 s"]
    assert told[0].reason.startswith("KeyError: 'no such key' (reward_functions.py:")
    assert in_process.take_failures() == []


async def test_a_result_comes_whole_out_of_the_other_process(in_process: RewardRunner, on_loop: RewardRunner) -> None:
    for runner in (in_process, on_loop):
        assert await reward_of(runner, "rich") == Reward(total=2.0, per_token=[0.5])


@pytest.mark.parametrize("name", ["by_token", "by_token_async"])
async def test_a_function_that_asks_for_tokens_gets_the_text_of_each(name: str) -> None:
    runner = make_runner(name)
    try:
        prompt = Prompt(prompt_id=0, text="", token_ids=[0], answer="")
        assert await runner.score(prompt, [7, 42, 101]) == Reward(total=6.0, per_token=[1.0, 2.0, 3.0])
    finally:
        runner.close()


async def test_a_call_over_its_time_has_failed_and_its_process_is_ended(in_process: RewardRunner) -> None:
    before = await score(in_process, "pid")
    timeouts = in_process.timeouts
    with pytest.raises(RewardFailed, match=r"longer than 0\.5 s"):
        await score(in_process, "sleep")
    assert in_process.timeouts == timeouts + 1
    assert await score(in_process, "pid") != before


async def test_waiting_for_a_process_is_not_counted_as_the_calls_time(in_process: RewardRunner) -> None:
    outcomes = await asyncio.gather(
        score(in_process, "sleep"), score(in_process, "sleep"), score(in_process, "true"), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [RewardFailed, RewardFailed, float]


async def test_a_cancelled_call_frees_its_process() -> None:
    runner = make_runner("misbehave")
    try:
        call = asyncio.create_task(score(runner, "sleep"))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await score(runner, "true") == 1.0
    finally:
        runner.close()


async def test_close_ends_a_call_and_leaves_no_process() -> None:
    others = set(multiprocessing.active_children())
    runner = make_runner("misbehave")
    assert await score(runner, "true") == 1.0
    call = asyncio.create_task(score(runner, "sleep"))
    await asyncio.sleep(0.2)
    started = time.monotonic()
    runner.close()
    runner.close()
    assert time.monotonic() - started < 20
    assert set(multiprocessing.active_children()) <= others
    with pytest.raises((RewardFailed, asyncio.CancelledError)):
        await call


async def test_an_async_call_over_its_time_has_failed(on_loop: RewardRunner) -> None:
    with pytest.raises(RewardFailed, match=r"longer than 0\.05 s"):
        await score(on_loop, "sleep")
    assert (on_loop.errors, on_loop.timeouts) == (0, 1)


async def test_a_functions_own_timeout_is_an_error_with_its_words(on_loop: RewardRunner) -> None:
    with pytest.raises(RewardFailed, match="the judge did not answer"):
        await score(on_loop, "own timeout")
    assert (on_loop.errors, on_loop.timeouts) == (1, 0)


async def test_async_calls_run_at_once_up_to_the_limit() -> None:
    runner = make_runner("misbehave_async", timeout_s=0.2, max_concurrent=2)
    started = time.monotonic()
    outcomes = await asyncio.gather(*(score(runner, "sleep") for _ in range(4)), return_exceptions=True)
    assert all(isinstance(outcome, RewardFailed) for outcome in outcomes)
    assert 0.4 <= time.monotonic() - started < 0.8 + 0.2


async def test_an_object_with_an_async_call_is_awaited() -> None:
    assert await score(make_runner("judge"), "") == 0.25


def test_an_unusable_function_is_refused_before_anything_starts() -> None:
    with pytest.raises(RewardError, match="has no 'absent'"):
        make_runner("absent")
