"""A generator keeps its promises to the controller, whatever the order of grants, acks, weights and failures."""

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from async_rl.errors import ChannelError, RewardError
from async_rl.protocol import (
    Activated,
    Credit,
    Delivery,
    FinishReason,
    GroupFailed,
    Heartbeat,
    Prompt,
    Purpose,
    Refused,
    RewardFailures,
    Sampling,
    Scalar,
    VersionSpan,
    WeightManifest,
    Welcome,
    Withdraw,
)
from async_rl.reward import Reward
from generators.engine import RequestRefused, Sample, UpdateTiming
from generators.reward_reader import RewardReader
from generators.scripted_engine import ScriptedEngine
from tests.generators import reward_functions
from tests.generators.desk import GROUP_SIZE, generator, make_published

calls: Counter[str] = Counter()
"""How often the reward function was asked, by prompt."""


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


async def reward(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """Prompt 13 fails always, 7 on its first call, 9 is no number on its first call, 5 hangs on its first call."""
    calls[prompt] += 1
    if prompt == "13" or (prompt == "7" and calls[prompt] == 1):
        raise ValueError(f"cannot judge {prompt}")
    if prompt == "9" and calls[prompt] == 1:
        return float("nan")
    if prompt == "5" and calls[prompt] == 1:
        await asyncio.sleep(60)
    return float(len(response.split()))


REWARD = f"{__name__}:reward"


async def picky(prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar]) -> float:
    """The number of tokens; the first response of five fails."""
    num_tokens = len(response.split())
    calls[str(num_tokens)] += 1
    if num_tokens == 5 and calls["5"] == 1:
        raise ValueError("no verdict")
    return float(num_tokens)


async def rich(
    prompt: str, response: str, answer: str, metadata: Mapping[str, Scalar], tokens: Sequence[str]
) -> Reward:
    """Everything at once."""
    return Reward(total=9.0, components={"b": 0.5, "a": 0.25}, per_token=[float(token) for token in tokens])


def index_of(request_id: str) -> int:
    """Which sample of its group a request is."""
    return int(request_id.split(".")[2])


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
    async with generator(ScriptedEngine(lengths=lambda _: 3), reward=f"{__name__}:rich", reader=reader) as (desk, _):
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
    async with generator(engine, reward=f"{__name__}:picky") as (desk, _):
        desk.grant(1, greedy_baseline=True)
        group = (await desk.next(Delivery, after=0)).group
    assert (group.rewards, group.baseline_reward) == ([3.0, 3.0], 5.0)
    assert sorted(map(index_of, engine.started_requests)) == [0, 1, 2, 2]


async def test_a_greedy_answer_takes_room_like_any_other() -> None:
    engine = GatedEngine()
    async with generator(engine, reward=REWARD, requests_per_group=GROUP_SIZE + 1, max_concurrent=8) as (desk, _):
        assert (await desk.next(Credit, after=0)).limit == 2  # 8 slots hold 2 groups of 3
        desk.grant(1, 2, greedy_baseline=True)
        await desk.until(lambda: len(engine.gates) == 6)
        engine.release(1, 2)
        assert (await desk.next(Credit, after=1)).limit == 3, "of 8 slots, 3 are free"


class GatedEngine(ScriptedEngine):
    """Holds every request until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Event] = {}

    async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
        gate = self.gates[request_id.split("-")[1]] = asyncio.Event()
        await gate.wait()
        return await super().generate(request_id, prompt_token_ids, sampling)

    def release(self, group_id: int, index: int) -> None:
        self.gates[f"{group_id}.0.{index}.0"].set()


async def test_credit_is_what_has_been_received_and_what_still_fits() -> None:
    engine = GatedEngine()
    async with generator(engine, reward=REWARD, max_concurrent=5) as (desk, _):
        assert (await desk.next(Credit, after=0)).limit == 2  # 5 slots hold 2 groups of 2
        desk.grant(1)
        await desk.until(lambda: len(engine.gates) == 2)
        desk.grant(2)
        await desk.until(lambda: len(engine.gates) == 4)
        # Received 1, room for 1; received 2, room for none: the limit stays, and is not said again.
        assert [credit.limit for credit in desk.of(Credit)] == [2]
        engine.release(1, 0)
        assert (await desk.next(Credit, after=1)).limit == 3  # 2 of 5 slots are free while the sibling still runs
        engine.release(1, 1)
        await desk.next(Delivery, after=0)
        engine.release(2, 0)
        assert (await desk.next(Credit, after=2)).limit == 4


async def test_more_leases_than_fit_wait_for_room() -> None:
    engine = ScriptedEngine(lengths=lambda request_id: 2 + index_of(request_id), token_s=0.001)
    async with generator(engine, reward=REWARD, max_concurrent=4) as (desk, _):
        desk.grant(*range(20, 30))
        await desk.next(Delivery, after=9)
        limits = [credit.limit for credit in desk.of(Credit)]
    assert engine.most_open == 4
    assert limits == sorted(limits) and limits[-1] <= 12


async def test_siblings_are_rewarded_while_others_still_run() -> None:
    engine = GatedEngine()
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.grant(1)
        await desk.until(lambda: len(engine.gates) == 2)
        engine.release(1, 0)
        await desk.until(lambda: calls["1"] == 1)
        assert not desk.of(Delivery)
        engine.release(1, 1)
        await desk.next(Delivery, after=0)


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


async def test_a_group_that_is_too_large_for_the_channel_goes_back() -> None:
    async with generator(ScriptedEngine(), reward=REWARD) as (desk, _):
        desk.too_large = 3
        desk.grant(3, 4)
        assert "channel.max_message_mib" in (await desk.next(GroupFailed, after=0)).reason
        assert (await desk.next(Delivery, after=0)).group.group_id == 4
        desk.tell(Welcome(epoch="2"))
        assert (await desk.next(Delivery, after=1)).group.group_id == 4


async def test_a_delivery_is_said_again_at_every_welcome_until_its_ack() -> None:
    async with generator(ScriptedEngine(), reward=REWARD) as (desk, _):
        desk.grant(1, 2)
        first = [await desk.next(Delivery, after=n) for n in range(2)]
        desk.tell(Welcome(epoch="2"))
        again = [await desk.next(Delivery, after=n) for n in range(2, 4)]
        assert again == first
        desk.acknowledge(first[0])
        desk.tell(Welcome(epoch="2"))
        assert await desk.next(Delivery, after=4) == first[1]
        desk.acknowledge(first[1])
        desk.acknowledge(first[1])  # of the second copy
        heartbeats = len(desk.of(Heartbeat))
        desk.tell(Welcome(epoch="3"))
        await desk.next(Heartbeat, after=heartbeats)
        assert len(desk.of(Delivery)) == 5


async def test_a_welcome_starts_the_count_of_leases_anew() -> None:
    async with generator(ScriptedEngine(), reward=REWARD, max_concurrent=8) as (desk, _):
        desk.grant(1, 2, 3)
        await desk.next(Delivery, after=2)
        await desk.until(lambda: desk.of(Credit)[-1].limit == 3 + 4)
        desk.tell(Welcome(epoch="2"))
        await desk.until(lambda: desk.of(Credit)[-1].limit == 4)


async def test_a_withdrawn_group_is_cancelled_in_the_engine_and_forgotten() -> None:
    engine = ScriptedEngine(lengths=lambda _: 16, token_s=0.05)
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.grant(1, 2)
        await desk.until(lambda: len(engine.open_requests) == 4)
        desk.tell(Withdraw(group_ids=[1, 99], purpose=Purpose.TRAIN))
        await desk.until(lambda: len(engine.open_requests) == 2)
        assert {request_id.split(".")[0] for request_id in engine.open_requests} == {"train-2"}
        delivery = await desk.next(Delivery, after=0)
        assert delivery.group.group_id == 2
        desk.tell(Withdraw(group_ids=[2], purpose=Purpose.EVALUATE))
        desk.tell(Welcome(epoch="2"))
        assert (await desk.next(Delivery, after=1)) == delivery  # another purpose's group 2 was withdrawn
        desk.tell(Withdraw(group_ids=[2], purpose=Purpose.TRAIN))
        heartbeats = len(desk.of(Heartbeat))
        desk.tell(Welcome(epoch="3"))
        await desk.next(Heartbeat, after=heartbeats)
        assert len(desk.of(Delivery)) == 2


async def test_a_withdrawal_in_the_same_breath_as_its_grant_frees_the_room() -> None:
    async with generator(ScriptedEngine(), reward=REWARD) as (desk, _):
        await desk.next(Credit, after=0)
        desk.grant(1, 2)
        desk.tell(Withdraw(group_ids=[1, 2], purpose=Purpose.TRAIN))
        await desk.until(lambda: desk.of(Credit)[-1].limit == 2 + 4)
        assert not desk.of(Delivery)


async def test_a_later_attempt_replaces_an_earlier_one() -> None:
    engine = ScriptedEngine(token_s=0.01)
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.grant(1, attempt=0)
        await desk.until(lambda: len(engine.open_requests) == 2)
        desk.grant(1, attempt=1)
        assert (await desk.next(Delivery, after=0)).group.attempt == 1
        await asyncio.sleep(0.05)
        assert len(desk.of(Delivery)) == 1


async def test_a_lease_that_is_over_is_not_worked_on_any_more() -> None:
    engine = ScriptedEngine(lengths=lambda _: 16, token_s=0.05)
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.grant(1, timeout_s=0.05)
        await desk.until(lambda: bool(engine.open_requests))
        await desk.until(lambda: not engine.open_requests)
        await desk.until(lambda: desk.of(Credit)[-1].limit == 1 + 4)
        assert not desk.of(Delivery) and not desk.of(GroupFailed)


async def test_tokens_carry_the_version_that_sampled_them() -> None:
    engine = ScriptedEngine(lengths=lambda _: 16, token_s=0.005)
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.tell(make_published(3))
        assert (await desk.next(Activated, after=0)).activation.version == 3
        desk.grant(1)
        await desk.until(lambda: len(engine.open_requests) == 2)
        await asyncio.sleep(0.02)
        desk.tell(make_published(4))
        trajectory = (await desk.next(Delivery, after=0)).group.trajectories[0]
    assert [span.version for span in trajectory.spans] == [3, 4]
    for position, (token, version) in enumerate(
        zip(trajectory.token_ids.tolist(), trajectory.weight_versions.tolist(), strict=True)
    ):
        assert token == (1 + 7 * position + 3 * version) % 32


async def test_versions_published_during_an_update_are_skipped_but_for_the_newest() -> None:
    engine = ScriptedEngine(transfer_s=0.05)
    async with generator(engine, reward=REWARD) as (desk, _):
        for version in range(1, 6):
            desk.tell(make_published(version))
            if version == 1:
                await asyncio.sleep(0.01)
        await desk.next(Activated, after=1)
        assert [a.activation.version for a in desk.of(Activated)] == [1, 5]


async def test_a_learner_that_has_gone_back_publishes_smaller_versions_which_are_taken() -> None:
    engine = ScriptedEngine(token_s=0.001)
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.tell(make_published(5))
        desk.grant(1)
        await desk.until(lambda: bool(engine.open_requests))
        desk.tell(Withdraw(group_ids=[1], purpose=Purpose.TRAIN))
        desk.tell(make_published(3, history=1))
        after = await desk.next(Activated, after=1)
        assert (after.activation.version, after.history) == (3, 1)
        desk.grant(1, attempt=1)
        group = (await desk.next(Delivery, after=0)).group
    assert (group.attempt, group.oldest_version, group.newest_version) == (1, 3, 3)
    assert [(a.activation.version, a.history) for a in desk.of(Activated)] == [(5, 0), (3, 1)]


@pytest.mark.parametrize("newer_is_known", [True, False])
async def test_an_unreadable_version_changes_nothing(newer_is_known: bool, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(transfer_s=0.2, unreadable=frozenset({1}))
    async with generator(engine, reward=REWARD) as (desk, _):
        desk.tell(make_published(1))
        await asyncio.sleep(0.05 if newer_is_known else 0.4)
        assert engine.active_version == -1
        desk.tell(make_published(2))
        assert (await desk.next(Activated, after=0)).activation.version == 2
    # It is worth a word only where nothing newer makes up for it.
    assert ("version 1 is not activated" in caplog.text) is not newer_is_known


async def test_heartbeats_tell_idle_and_paused_time() -> None:
    engine = ScriptedEngine(token_s=0.01, pause_s=0.05)
    async with generator(engine, reward=REWARD, heartbeat_s=0.01) as (desk, _):
        desk.tell(make_published(1))
        await desk.next(Activated, after=0)
        await asyncio.sleep(0.1)
        idle = (await desk.next(Heartbeat, after=len(desk.of(Heartbeat)))).stats
        desk.grant(1)
        await desk.next(Delivery, after=0)
        busy = (await desk.next(Heartbeat, after=len(desk.of(Heartbeat)))).stats
    assert (idle.active_version, idle.running_requests, idle.sampled_tokens) == (1, 0, 0)
    assert idle.idle_s == pytest.approx(idle.elapsed_s, abs=1e-4)
    assert idle.paused_s >= 0.05
    assert busy.sampled_tokens == 16
    assert busy.elapsed_s - busy.idle_s >= 8 * 0.01
    assert busy.idle_s >= idle.idle_s


async def test_every_delivery_is_preceded_by_counters_that_hold_its_tokens() -> None:
    async with generator(ScriptedEngine(lengths=lambda _: 3), reward=REWARD, heartbeat_s=60.0) as (desk, _):
        for n in range(3):
            desk.grant(n + 1)
            await desk.next(Delivery, after=n)
    told = [m for m in desk.sent if isinstance(m, Heartbeat | Delivery)]
    assert [type(m) for m in told] == [Heartbeat] + [Heartbeat, Delivery] * 3, "one after the welcome"
    assert [m.stats.sampled_tokens for m in told if isinstance(m, Heartbeat)] == [0, 6, 12, 18]


async def test_a_reward_that_fails_at_first_is_told_with_its_reason() -> None:
    async with generator(ScriptedEngine(), reward=REWARD) as (desk, _):
        desk.grant(7)
        await desk.next(Delivery, after=0)
    (failures,) = desk.of(RewardFailures)
    assert (failures.cause.split(" (")[0], failures.count) == ("ValueError", 1)
    assert "ValueError: cannot judge 7 (test_generator.py:" in failures.reason


async def test_rewards_that_only_end_their_process_end_the_generator_as_the_users_mistake() -> None:
    reward = f"{reward_functions.__file__}:lethal"
    async with generator(ScriptedEngine(), reward=reward, max_retries=0, timeout_s=30.0) as (desk, task):
        desk.grant(*range(4), prompt=Prompt(prompt_id=0, text="die", token_ids=[1], answer=""))
        for n in range(4):
            await desk.next(GroupFailed, after=n)
        for number in range(4):
            desk.grant(10 + number, prompt=Prompt(prompt_id=0, text=f"die {number}", token_ids=[1], answer=""))
        with pytest.raises(RewardError, match="exit code 7"):
            await asyncio.wait_for(task, 20)


async def test_the_end_cancels_what_is_running() -> None:
    engine = ScriptedEngine(lengths=lambda _: 16, token_s=1.0)
    async with generator(engine, reward=REWARD) as (desk, task):
        desk.grant(1, 2)
        await desk.until(lambda: len(engine.open_requests) == 4)
    assert task.done() and task.exception() is None
    assert not engine.open_requests


async def test_a_refusal_ends_it_with_the_reason() -> None:
    async with generator(ScriptedEngine(), reward=REWARD) as (desk, task):
        desk.tell(Refused(reason="another schema"))
        with pytest.raises(ChannelError, match="another schema"):
            await asyncio.wait_for(task, 5)


class BrokenError(Exception):
    """What a dead engine raises."""


@pytest.mark.parametrize("where", ["generate", "update_weights"])
async def test_a_broken_engine_ends_the_generator_with_its_own_error(where: str) -> None:
    class Broken(ScriptedEngine):
        async def generate(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Sample:
            if where == "generate" and index_of(request_id) == 1:
                raise BrokenError
            await asyncio.sleep(60)
            raise AssertionError

        async def update_weights(self, manifest: WeightManifest) -> UpdateTiming:
            raise BrokenError

    async with generator(Broken(), reward=REWARD) as (desk, task):
        desk.grant(1, 2)
        if where == "update_weights":
            desk.tell(make_published(1))
        with pytest.raises(BrokenError):
            await asyncio.wait_for(task, 5)
