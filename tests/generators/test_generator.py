"""A generator keeps its promises to the controller, whatever the order of grants, acks, weights and failures."""

import asyncio
from collections.abc import Sequence

import pytest

from async_rl.errors import ChannelError, RewardError
from async_rl.protocol import (
    Activated,
    Credit,
    Delivery,
    GroupFailed,
    Heartbeat,
    Prompt,
    Purpose,
    Refused,
    RewardFailures,
    Sampling,
    WeightManifest,
    Welcome,
    Withdraw,
)
from generators.engine import Sample, UpdateTiming
from generators.scripted_engine import ScriptedEngine
from tests.generators import reward_functions
from tests.generators.desk import GROUP_SIZE, generator, make_published
from tests.generators.judges import REWARD, calls
from tests.generators.requests import index_of


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
    assert "ValueError: cannot judge 7 (judges.py:" in failures.reason


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
