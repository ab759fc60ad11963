"""Whole runs in one event loop: the bound, the ledger and the end of the run, whatever generators do."""

import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from async_rl.config.loop import WeightsConfig
from async_rl.config.objective import AdvantageConfig, Estimator
from async_rl.config.staleness import OverBound
from async_rl.controller.controller import Phase
from async_rl.errors import RunError
from async_rl.protocol import Activated, Activation, Credit, Grant, GroupFailed, Lease, Published, Role
from generators.scripted_engine import ScriptedEngine
from tests.async_rl.controller.scripted_learner import LearnerScript
from tests.async_rl.controller.world import World, make_config


def uneven(seed: int, *, token_s: float = 0.001) -> ScriptedEngine:
    """An engine whose responses differ much in length."""
    draw = random.Random(seed)
    return ScriptedEngine(lengths=lambda request_id: draw.choice([1, 2, 3, 12]), token_s=token_s)


def assert_accounted_for(world: World) -> None:
    counts = world.controller.coordinator.counts
    assert counts.balanced
    assert counts.trained == world.config.steps * world.config.learner.groups_per_step
    assert len(set(world.trained_ids)) == len(world.trained_ids), "a group trained twice"


async def test_a_run_trains_every_batch_within_the_bound_and_evaluates_at_both_ends() -> None:
    world = World(make_config(maximum=2, depth=1))
    world.start_generator("generator-0", "a", uneven(0))
    world.start_generator("generator-1", "b", uneven(1))
    await world.run()
    assert_accounted_for(world)
    assert max(world.staleness) <= 2
    assert max(world.staleness) > 0, "generation never ran ahead"
    assert [r.version for r in world.notes.results] == [0, 6]
    assert all(r.num_answers == 6 for r in world.notes.results)
    counts = world.controller.coordinator.counts
    assert counts.queued == counts.leased == counts.delivered == counts.batched == 0, "nothing is left at the end"


async def test_staleness_zero_is_synchronous() -> None:
    world = World(make_config(maximum=0, depth=0))
    world.start_generator("generator-0", "a", uneven(0))
    await world.run()
    assert_accounted_for(world)
    assert set(world.staleness) == {0}


@pytest.mark.parametrize("publish_every", [1, 2, 3])
async def test_the_bound_holds_when_weights_are_published_seldom(publish_every: int) -> None:
    world = World(make_config(maximum=3, depth=2, steps=9))
    world.start_generator("generator-0", "a", uneven(0))
    await world.run(LearnerScript(publish_every=publish_every))
    assert_accounted_for(world)
    assert max(world.staleness) <= 3


async def test_a_slow_generator_makes_batches_wait_and_loses_nothing() -> None:
    world = World(make_config(maximum=1, depth=1, steps=8))
    world.start_generator("generator-0", "fast", uneven(0))
    world.start_generator("generator-1", "slow", uneven(1, token_s=0.03))
    await world.run()
    assert_accounted_for(world)
    assert max(world.staleness) <= 1
    assert world.controller.coordinator.counts.stale == 0
    assert any(g.incarnation == "slow" for b in world.batches for g in b.outline), "the slow are not starved"


@pytest.mark.parametrize("over_bound", [OverBound.drop, OverBound.requeue])
async def test_where_batches_do_not_wait_late_groups_never_train(over_bound: OverBound) -> None:
    world = World(make_config(maximum=1, depth=1, steps=8, over_bound=over_bound))
    world.start_generator("generator-0", "fast", uneven(0))
    world.start_generator("generator-1", "slow", uneven(1, token_s=0.03))
    await world.run()
    assert_accounted_for(world)
    assert max(world.staleness) <= 1


async def test_a_generator_that_dies_is_replaced_and_its_groups_train_once() -> None:
    world = World(make_config(steps=10))
    world.start_generator("generator-0", "a", uneven(0, token_s=0.005))
    world.start_generator("generator-1", "b", uneven(1))

    async def kill() -> None:
        await asyncio.sleep(0.15)
        assert world.engines["a"].open_requests, "nothing was under way"
        world.kill_generator("a")
        world.controller.generator_died("generator-0", "killed")
        await asyncio.sleep(0.1)
        world.start_generator("generator-0", "a2", uneven(2))

    await asyncio.gather(world.run(LearnerScript(step_s=0.05)), kill())
    assert_accounted_for(world)
    assert world.controller.coordinator.ledger.reasons["generator lost: killed"] > 0
    assert any("leases went back" in message for message in world.notes.messages)


async def test_everything_sent_three_times_counts_once() -> None:
    world = World(make_config())
    world.start_generator("generator-0", "a", uneven(0), copies=3)
    await world.run(LearnerScript(copies=3, checkpoint_every=2))
    assert_accounted_for(world)
    assert [s.version for s in world.checkpoints.states] == [2, 4, 6]


async def test_a_silent_generator_loses_its_leases_and_is_taken_back_when_heard_again() -> None:
    config = make_config(steps=6)
    world = World(config)
    world.start_generator("generator-0", "a", uneven(0))

    async def forget() -> None:
        await asyncio.sleep(0.1)
        world.controller.generator_died("generator-0", "silent")

    await asyncio.gather(world.run(LearnerScript(step_s=0.05)), forget())
    assert_accounted_for(world)


async def test_a_stop_and_a_restart_train_every_prompt_once() -> None:
    config = make_config(maximum=2, depth=2, steps=10)
    first = World(config)
    first.start_generator("generator-0", "a", uneven(0))

    async def stop() -> None:
        while len(first.batches) < 5:
            await asyncio.sleep(0.01)
        first.controller.stop("asked to")

    await asyncio.gather(first.run(LearnerScript(checkpoint_every=2)), stop())
    state = first.checkpoints.states[-1]
    assert state.version == len(first.batches)
    assert not set(first.journal.groups) & set(first.trained_ids), "the checkpoint covers what was trained"
    second = World(config, state=state, journal=first.journal)
    second.start_generator("generator-0", "b", uneven(1))
    await second.run()
    together = first.trained_ids + second.trained_ids
    assert sorted(together) == list(range(40))
    assert max(second.staleness) <= 2


async def test_after_a_crash_the_surviving_history_trains_every_prompt_once() -> None:
    config = make_config(maximum=2, depth=2, steps=10)
    first = World(config)
    first.start_generator("generator-0", "a", uneven(0))

    async def crash() -> None:
        while len(first.batches) < 7:
            await asyncio.sleep(0.005)
        first.controller.fail(RunError("crash"))

    with pytest.raises(RunError, match="crash"):
        await asyncio.gather(first.run(LearnerScript(checkpoint_every=5)), crash())
    state = first.checkpoints.states[-1]
    assert state.version == 5
    survived = first.trained_ids[: 5 * 4]
    second = World(config, state=state, journal=first.journal)
    delivered = set(second.controller.coordinator.buffer.groups)
    assert delivered, "groups that were delivered before the crash are not generated again"
    second.start_generator("generator-0", "b", uneven(1))
    await second.run()
    assert sorted(survived + second.trained_ids) == list(range(40))
    assert max(second.staleness) <= 2


async def test_counters_of_the_generators_hold_what_was_trained_however_short_the_run() -> None:
    world = World(make_config(steps=2))
    world.heartbeat_s = 60.0
    world.start_generator("generator-0", "a", uneven(0))
    await world.run(LearnerScript(step_s=0.0))
    trained = sum(t.num_tokens for b in world.batches for g in b.outline for t in g.trajectories)
    assert world.notes.totals.sampled_tokens >= trained > 0
    assert world.notes.totals.elapsed_s > 0


@pytest.mark.parametrize("copies", [1, 3])
async def test_a_waiting_learner_scores_each_fresh_group_once_under_the_version_that_sampled_last(copies: int) -> None:
    world = World(make_config(maximum=2, depth=1, steps=8))
    world.start_generator("generator-0", "a", uneven(0, token_s=0.003), copies=copies)
    await world.run(LearnerScript(score_s=0.0, copies=copies))
    assert_accounted_for(world)
    assert len(world.scored) > 8
    assert all(group.newest_version == version for version, group in world.scored)
    keys = [group.key for _, group in world.scored]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= {group.key for batch in world.batches for group in batch.outline}, "all of them trained later"


async def test_a_batch_waits_for_no_more_than_one_scoring() -> None:
    world = World(make_config(maximum=2, depth=1, steps=6))
    world.start_generator("generator-0", "a", uneven(0, token_s=0.002))
    await world.run(LearnerScript(score_s=0.2))
    assert_accounted_for(world)
    versions = [version for version, _ in world.scored]
    assert max(map(versions.count, versions)) <= 2, "batches form in 0.03 s, so another scoring would be in their way"


async def test_a_greedy_baseline_comes_with_every_group() -> None:
    config = replace(make_config(steps=4), advantage=AdvantageConfig(estimator=Estimator.remax))
    world = World(config)
    world.start_generator("generator-0", "a", uneven(0))
    await world.run()
    assert_accounted_for(world)
    groups = [group for batch in world.batches for group in batch.outline]
    assert all(group.baseline_reward in (0.0, 1.0) and len(group.trajectories) == 2 for group in groups)
    # Of 12 requests at once, each group takes 3.
    assert world.engines["a"].most_open <= 12
    assert [r.num_answers for r in world.notes.results] == [6, 6], "evaluations need none"


async def test_groups_without_signal_are_filtered_and_others_fill_the_batches() -> None:
    config = replace(make_config(steps=5), advantage=AdvantageConfig(filter_zero_signal=True))
    world = World(config)
    world.start_generator("generator-0", "a", uneven(0))
    await world.run()
    assert_accounted_for(world)
    counts = world.controller.coordinator.counts
    assert counts.filtered > 0
    assert all(len({t.reward for t in group.trajectories}) > 1 for batch in world.batches for group in batch.outline)
    assert not set(world.journal.groups) - set(world.trained_ids), "what is filtered is not kept"


async def test_a_reward_that_fails_and_then_succeeds_is_told_once_a_cause() -> None:
    config = make_config(steps=3)
    world = World(replace(config, reward=replace(config.reward, function=f"{__name__}:fails_now_and_then")))
    world.max_retries = 5
    world.start_generator("generator-0", "a", uneven(0))
    await world.run()
    assert_accounted_for(world)
    told = [m for m in world.notes.messages if "A reward failed" in m]
    assert len(told) == 1
    assert "at generator-0: ValueError: no verdict (test_controller.py:" in told[0]


verdicts = itertools.count()


async def fails_now_and_then(prompt: str, response: str, answer: str, metadata: dict[str, object]) -> float:
    if next(verdicts) % 3 == 0:
        raise ValueError("no verdict")
    return float(len(response) % 2)


def refusal(lease: Lease) -> GroupFailed:
    return GroupFailed(purpose=lease.purpose, group_id=lease.group_id, attempt=lease.attempt, reason="no such answer")


async def refuse_everything(world: World, name: str, incarnation: str) -> None:
    """A generator whose every group fails at once."""
    link = world.peers.connect(Role.GENERATOR, name, incarnation)
    while True:
        message = await link.receive()
        if isinstance(message, Published):
            version = message.manifest.version
            await link.send(Activated(activation=Activation(version=version, transfer_s=0, pause_s=0)))
            await link.send(Credit(limit=10_000))
        elif isinstance(message, Grant):
            for lease in message.leases:
                await link.send(refusal(lease))


async def test_a_generator_that_fails_everything_does_not_end_the_run_of_a_healthy_one() -> None:
    world = World(make_config(steps=8))
    world.start_generator("generator-0", "good", uneven(0))
    world.generators["bad"] = asyncio.create_task(refuse_everything(world, "generator-1", "bad"))
    await world.run()
    assert_accounted_for(world)
    assert world.controller.coordinator.counts.failed == 0
    assert world.controller.coordinator.ledger.reasons["no such answer"] > 0


async def test_a_run_whose_every_group_fails_stops_and_says_why() -> None:
    world = World(make_config())
    world.generators["a"] = asyncio.create_task(refuse_everything(world, "generator-0", "a"))
    with pytest.raises(RunError, match=r"32 groups in a row have failed.*no such answer"):
        await world.run()
    assert world.controller.coordinator.counts.balanced


async def test_a_generator_that_misses_a_publish_is_left_out_by_name_and_taken_back() -> None:
    config = replace(make_config(maximum=50, depth=40, steps=40), weights=WeightsConfig(deadline_s=0.3))
    world = World(config)
    world.start_generator("generator-0", "a", uneven(0, token_s=0.02))
    held: list[Lease] = []
    while_left_out: list[Lease] = []

    async def lag() -> None:
        link = world.peers.connect(Role.GENERATOR, "generator-1", "b")
        while world.controller.phase is Phase.STARTING:
            await asyncio.sleep(0.01)
        await link.send(Credit(limit=2))
        offers: list[int] = []
        while len(set(offers)) == len(offers):  # until it is offered a version again
            message = await link.receive()
            if isinstance(message, Published):
                offers.append(message.manifest.version)
                if len(offers) == 1:
                    await link.send(Activated(activation=Activation(version=0, transfer_s=0, pause_s=0)))
            elif isinstance(message, Grant):
                held.extend(message.leases)
        await link.send(Credit(limit=10_000))
        for lease in held:
            await link.send(refusal(lease))
        await asyncio.sleep(0.3)
        await link.send(Credit(limit=2))
        while not world.peers.outboxes["b"].empty():
            message = await link.receive()
            while_left_out.extend(message.leases if isinstance(message, Grant) else [])
        version = world.controller.coordinator.version
        await link.send(Activated(activation=Activation(version=version, transfer_s=0, pause_s=0)))

    world.generators["b"] = asyncio.create_task(lag())
    await world.run(LearnerScript(step_s=0.05))
    said = [m for m in world.notes.messages if m.startswith("generator-1")]
    assert "left out" in said[0] and "weights.deadline_s=0.3" in said[0]
    assert "has caught up" in said[1]
    assert held and not while_left_out
    assert_accounted_for(world)
