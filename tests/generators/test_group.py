"""A group is sampled whole, rewarded sample by sample, and what fails is sampled again or goes back with the reason."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from async_rl.protocol import (
    Credit,
    Delivery,
    FinishReason,
    GroupFailed,
    Heartbeat,
    Purpose,
    Sampling,
    VersionSpan,
)
from generators.engine import RequestRefused, Sample
from generators.reward_reader import RewardReader
from generators.scripted_engine import ScriptedEngine
from tests.generators.desk import GROUP_SIZE, generator
from tests.generators.judges import PICKY, REWARD, RICH
from tests.generators.requests import index_of


async def test_a_group_is_delivered_with_what_the_engine_sampled() -> None:
    engine = ScriptedEngine(lengths=lambda request_id: 3 + index_of(request_id))
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.grant(4, attempt=1)
        delivery = await desk.next(Delivery, after=0)
        group = delivery.group
    assert delivery.purpose is Purpose.TRAIN
    assert (group.group_id, group.attempt, group.incarnation) == (4, 1, "generator-0-a")
    assert (group.prompt_id, group.task, group.prompt_token_ids) == (4, "sums", [4])
    assert group.rewards == [3.0, 4.0]
    # ScriptedEngine: token = (prompt + 7·position + 3·version) mod 32, with version −1.
    assert [t.token_ids.tolist() for t in group.trajectories] == [[1, 8, 15], [1, 8, 15, 22]]
    assert group.trajectories[0].rollout_logprobs.tolist() == [-1 - 1 / 32, -1.25, -1 - 15 / 32]
    assert group.trajectories[0].spans == [VersionSpan(version=-1, start=0, end=3)]
    assert group.trajectories[0].loss_mask.all()
    assert {t.finish_reason for t in group.trajectories} == {FinishReason.STOP}


async def test_token_rewards_and_named_rewards_travel_with_their_trajectory() -> None:
    reader = RewardReader(components=("a", "b"))
    async with generator(ScriptedEngine(lengths=lambda _: 3), reward=RICH, reader=reader) as (desk, _):
        desk.grant(4)
        group = (await desk.next(Delivery, after=0)).group
    assert group.rewards == [9.0, 9.0]
    assert [t.reward_components for t in group.trajectories] == [[0.25, 0.5]] * 2
    for t in group.trajectories:
        assert t.token_rewards is not None and t.token_rewards.dtype == np.float32
        assert t.token_rewards.tolist() == t.token_ids.tolist()
    assert group.baseline_reward is None


async def test_a_response_at_the_limit_says_so() -> None:
    async with generator(ScriptedEngine(lengths=lambda _: 99), reward=REWARD) as (desk, _):
        desk.grant(1)
        delivery = await desk.next(Delivery, after=0)
    assert [(t.num_tokens, t.finish_reason) for t in delivery.group.trajectories] == [(16, FinishReason.LENGTH)] * 2


async def test_evaluation_leases_are_worked_on_with_their_own_size_and_sampling() -> None:
    async with generator(ScriptedEngine(), reward=REWARD) as (desk, _):
        greedy = Sampling(max_tokens=2, temperature=0.0)
        desk.grant(1, purpose=Purpose.EVALUATE, group_size=1, sampling=greedy)
        desk.grant(1)
        deliveries = [await desk.next(Delivery, after=n) for n in range(2)]
    assert {d.purpose: [t.num_tokens for t in d.group.trajectories] for d in deliveries} == {
        Purpose.EVALUATE: [2],
        Purpose.TRAIN: [8, 8],
    }


class GreedyEngine(ScriptedEngine):
    """Remembers how each request was to be sampled; greedy answers have a length of their own."""

    def __init__(self, *, greedy_length: int) -> None:
        super().__init__(lengths=lambda request_id: greedy_length if index_of(request_id) == GROUP_SIZE else 3)
        self.sampling: dict[str, Sampling] = {}

    async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
        self.sampling[request_id] = sampling
        return await super().generate(request_id, prompt_token_ids, sampling)


async def test_a_greedy_answer_is_sampled_beside_the_group_and_only_its_reward_travels() -> None:
    engine = GreedyEngine(greedy_length=5)
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.grant(1, greedy_baseline=True, sampling=Sampling(max_tokens=16, temperature=0.7, top_p=0.9, top_k=5))
        group = (await desk.next(Delivery, after=0)).group
        stats = (await desk.next(Heartbeat, after=1)).stats
    assert (group.rewards, group.baseline_reward) == ([3.0, 3.0], 5.0)
    assert stats.sampled_tokens == 3 + 3 + 5
    settings = [engine.sampling[request_id] for request_id in sorted(engine.sampling, key=index_of)]
    assert [s.temperature for s in settings] == [0.7, 0.7, 0.0]
    assert settings[-1] == Sampling(max_tokens=16, temperature=0.0)


async def test_a_greedy_answer_whose_reward_fails_is_sampled_again_and_the_others_are_not() -> None:
    engine = GreedyEngine(greedy_length=5)
    async with generator(engine, reward=PICKY) as (desk, _):
        desk.grant(1, greedy_baseline=True)
        group = (await desk.next(Delivery, after=0)).group
    assert (group.rewards, group.baseline_reward) == ([3.0, 3.0], 5.0)
    assert sorted(map(index_of, engine.started_requests)) == [0, 1, 2, 2]


@pytest.mark.parametrize(("prompt", "timeouts"), [(7, 0), (9, 0), (5, 1)])
async def test_a_failed_reward_samples_only_that_response_again(prompt: int, timeouts: int) -> None:
    engine = ScriptedEngine()
    async with generator(engine, reward=REWARD, heartbeat_s=0.05) as (desk, _):
        desk.grant(prompt)
        group = (await desk.next(Delivery, after=0)).group
        stats = (await desk.next(Heartbeat, after=len(desk.of(Heartbeat)))).stats
    assert group.rewards == [8.0, 8.0]
    assert len(engine.started_requests) == GROUP_SIZE + 1
    assert stats.resampled == 1
    assert (stats.reward_errors, stats.reward_timeouts) == (1 - timeouts, timeouts)
    assert stats.sampled_tokens == 24


async def test_a_group_whose_reward_keeps_failing_goes_back_with_the_reason() -> None:
    engine = ScriptedEngine(lengths=index_of)
    async with generator(engine, reward=REWARD, max_retries=1) as (desk, _):
        desk.grant(13, attempt=2)
        failed = await desk.next(GroupFailed, after=0)
        assert (failed.group_id, failed.attempt, failed.purpose) == (13, 2, Purpose.TRAIN)
        assert "no reward after 2 samples" in failed.reason
        assert "ValueError: cannot judge 13" in failed.reason
        # Nobody else is hurt, and its room is free again.
        desk.grant(1, 2, 3, 4)
        await desk.next(Delivery, after=3)
        assert not [d for d in desk.of(Delivery) if d.group.group_id == 13]
        assert desk.of(Credit)[-1].limit == 5 + 4


async def test_a_refused_request_fails_its_group_alone() -> None:
    class Picky(ScriptedEngine):
        async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
            if prompt_token_ids == [3]:
                raise RequestRefused("the prompt is too long")
            return await super().generate(request_id, prompt_token_ids, sampling)

    async with generator(Picky(), reward=REWARD) as (desk, _):
        desk.grant(3, 4)
        assert "the prompt is too long" in (await desk.next(GroupFailed, after=0)).reason
        assert (await desk.next(Delivery, after=0)).group.group_id == 4


@pytest.mark.parametrize("logprob", [math.nan, -math.inf])
async def test_a_group_with_a_token_without_a_log_probability_goes_back(logprob: float) -> None:
    class Overflowing(ScriptedEngine):
        async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
            sample = await super().generate(request_id, prompt_token_ids, sampling)
            broken = [*sample.logprobs[:-1], logprob]
            return dataclasses.replace(sample, logprobs=broken) if prompt_token_ids == [3] else sample

    async with generator(Overflowing(), reward=REWARD) as (desk, _):
        desk.grant(3, 4)
        assert f"log-probability {logprob}" in (await desk.next(GroupFailed, after=0)).reason
        assert (await desk.next(Delivery, after=0)).group.group_id == 4
