"""The scripted engine does what is written: tests of the loop's logic stand on it."""

import asyncio

import pytest

from async_rl.errors import WeightsError
from async_rl.protocol import FinishReason, Sampling
from generators.scripted_engine import ScriptedEngine
from tests.generators.desk import make_published


async def started(engine: ScriptedEngine) -> ScriptedEngine:
    await engine.start()
    return engine


async def test_the_same_request_gives_the_same_tokens() -> None:
    first, second = await started(ScriptedEngine()), await started(ScriptedEngine())
    sampling = Sampling(max_tokens=5)
    assert await first.generate("a", [1, 2], sampling) == await second.generate("b", [1, 2], sampling)


async def test_lengths_come_from_the_script_up_to_the_limit() -> None:
    engine = await started(ScriptedEngine(lengths=lambda request_id: int(request_id)))
    short, long = await asyncio.gather(*(engine.generate(n, [0], Sampling(max_tokens=5)) for n in ("3", "9")))
    assert (len(short.token_ids), short.finish_reason) == (3, FinishReason.STOP)
    assert (len(long.token_ids), long.finish_reason) == (5, FinishReason.LENGTH)


async def test_an_update_stops_every_request_and_the_next_token_is_of_the_new_version() -> None:
    engine = await started(ScriptedEngine(lengths=lambda _: 6, token_s=0.01, pause_s=0.05))
    request = asyncio.create_task(engine.generate("a", [0], Sampling(max_tokens=6)))
    await asyncio.sleep(0.025)
    timing = await engine.update_weights(make_published(4).manifest)
    sample = await request
    assert timing.pause_s >= 0.05 and engine.paused_s == timing.pause_s
    assert [span.version for span in sample.spans] == [-1, 4]
    assert engine.active_version == 4


async def test_an_unreadable_version_raises_and_leaves_the_old_one_active() -> None:
    engine = await started(ScriptedEngine(unreadable=frozenset({1})))
    with pytest.raises(WeightsError, match="version 1"):
        await engine.update_weights(make_published(1).manifest)
    assert engine.active_version == -1
    assert (await engine.generate("a", [0], Sampling(max_tokens=1))).spans[0].version == -1


async def test_cancelling_ends_a_request() -> None:
    engine = await started(ScriptedEngine(token_s=10))
    request = asyncio.create_task(engine.generate("a", [0], Sampling(max_tokens=5)))
    await asyncio.sleep(0)
    assert engine.open_requests == {"a"}
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert not engine.open_requests
