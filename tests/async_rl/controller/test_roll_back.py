"""A learner that dies: the run goes back to its last checkpoint among generators that live on, and loses nothing."""

import asyncio
import random
from collections.abc import Callable

import pytest

from async_rl.config.staleness import OverBound
from async_rl.controller.controller import Phase
from async_rl.protocol import (
    Activated,
    Activation,
    CheckpointWritten,
    Commit,
    Published,
    Role,
    StepMetrics,
)
from generators.scripted_engine import ScriptedEngine
from tests.async_rl.controller.scripted_learner import LearnerScript, make_manifest
from tests.async_rl.controller.world import World, make_config

STEPS = 10


def uneven(seed: int, *, transfer_s: float = 0.0) -> ScriptedEngine:
    """An engine whose responses differ much in length."""
    draw = random.Random(seed)
    return ScriptedEngine(lengths=lambda _: draw.choice([1, 2, 3, 12]), token_s=0.001, transfer_s=transfer_s)


def make_world(*, over_bound: OverBound = OverBound.wait, transfer_s: float = 0.0) -> World:
    world = World(make_config(maximum=2, depth=2, steps=STEPS, over_bound=over_bound))
    world.start_generator("generator-0", "a", uneven(0, transfer_s=transfer_s))
    world.start_generator("generator-1", "b", uneven(1, transfer_s=transfer_s))
    return world


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def assert_every_group_trained_once(world: World) -> None:
    counts = world.controller.coordinator.counts
    assert counts.balanced
    assert [batch.version for batch in world.batches] == list(range(STEPS))
    assert sorted(world.trained_ids) == list(range(STEPS * 4)), "in the history that survived"
    assert counts.trained == STEPS * 4
    assert max(world.staleness) <= 2
    assert not any("is gone" in message for message in world.notes.messages), "generators live on"


async def test_the_run_goes_back_to_the_last_checkpoint_and_trains_every_group_once() -> None:
    world = make_world()
    undone: list[int] = []

    async def kill() -> None:
        await until(lambda: len(world.batches) >= 6)
        undone.extend(g.group_id for batch in world.batches[3:] for g in batch.outline)
        world.kill_learner()

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=3)), kill())
    assert world.notes.rolled_back_to == [3]
    assert_every_group_trained_once(world)
    # What was delivered to the lost history is not sampled again, unless it cannot meet the bound any more.
    first = {g.group_id for batch in world.batches[3:5] for g in batch.outline}
    assert first & set(undone)
    assert [state.version for state in world.checkpoints.states] == [3, 6, 9, 10]
    assert not set(world.journal.groups) & set(world.trained_ids), "the last checkpoint covers all that was trained"


async def test_without_a_checkpoint_it_goes_back_to_the_start() -> None:
    world = make_world()

    async def kill() -> None:
        await until(lambda: world.controller.coordinator.version >= 4)
        world.kill_learner()

    await asyncio.gather(world.run(), kill())
    assert world.notes.rolled_back_to == [0]
    assert_every_group_trained_once(world)


@pytest.mark.parametrize("over_bound", [OverBound.wait, OverBound.drop, OverBound.requeue])
@pytest.mark.parametrize("seed", range(3))
async def test_whenever_it_dies(seed: int, over_bound: OverBound) -> None:
    world = make_world(over_bound=over_bound, transfer_s=0.01)
    draw = random.Random(seed)

    async def kill() -> None:
        for _ in range(6):
            await asyncio.sleep(draw.uniform(0.0, 0.15))
            world.kill_learner()

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=2, step_s=0.04)), kill())
    assert len(world.notes.rolled_back_to) >= 3
    assert_every_group_trained_once(world)


async def test_nobody_gets_a_lease_with_weights_of_the_history_that_is_undone() -> None:
    world = make_world()
    link = world.peers.connect(Role.GENERATOR, "generator-2", "late")

    async def samples_after(version: int, *, history: int) -> bool:
        """Whether the late one may have leases once it has said what it samples with."""
        activation = Activation(version=version, transfer_s=0, pause_s=0)
        await link.send(Activated(activation=activation, history=history))
        await until(world.peers.inbox.empty)
        await asyncio.sleep(0.01)
        return world.controller._generators.roster.peers["late"].has_weights

    async def lag() -> None:
        assert await samples_after(0, history=0)
        await until(lambda: world.controller.coordinator.version >= 5)
        world.kill_learner()
        await until(lambda: bool(world.notes.rolled_back_to))
        assert not any(peer.has_weights for peer in world.controller._generators.roster.by_name())
        assert world.controller.coordinator.counts.leased == 0
        assert not await samples_after(5, history=0), "which it was reading when the learner died"
        offers: list[Published] = []
        while not (offers and offers[-1].history):
            message = await link.receive()
            offers += [message] if isinstance(message, Published) else []
        assert (offers[-1].manifest.version, offers[-1].history) == (3, 1)
        assert await samples_after(3, history=1)

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=3, step_s=0.1)), lag())
    assert_every_group_trained_once(world)


async def test_what_an_earlier_life_still_says_is_passed_over() -> None:
    world = make_world()

    async def interfere() -> None:
        await until(lambda: world.controller.coordinator.version >= 4)
        world.kill_learner()
        await until(lambda: len(world.learner_lives) == 2)
        version = world.controller.coordinator.version
        for message in (
            Commit(version=version + 1, metrics=StepMetrics(scalars={"learner/tokens": 1.0})),
            Published(manifest=make_manifest(version + 5)),
            CheckpointWritten(version=version, folder="x"),
        ):
            world.peers.inbox.put_nowait(("learner-0-0", message))

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=3)), interfere())
    assert_every_group_trained_once(world)
    assert [state.version for state in world.checkpoints.states] == [3, 6, 9, 10]


async def test_a_checkpoint_that_becomes_whole_while_training_goes_on_covers_what_was_trained_when_it_began() -> None:
    world = make_world()

    async def kill() -> None:
        await until(lambda: [state.version for state in world.checkpoints.states] == [3])
        assert world.controller.coordinator.version > 3
        world.kill_learner()

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=3, write_steps=2, step_s=0.03)), kill())
    assert world.notes.rolled_back_to == [3]
    assert_every_group_trained_once(world)


async def test_where_the_last_checkpoint_is_damaged_the_run_goes_back_to_the_one_before() -> None:
    world = make_world()
    world.is_newest_damaged = True

    async def kill() -> None:
        await until(lambda: world.controller.coordinator.version >= 7)
        world.kill_learner()

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=3, step_s=0.03)), kill())
    assert world.notes.rolled_back_to == [6, 3]
    assert_every_group_trained_once(world)
    assert [state.version for state in world.checkpoints.states] == [3, 6, 9, 10]


@pytest.mark.parametrize("checkpoint_every", [3, 5], ids=["goes back to training", "stays at the end"])
async def test_a_death_in_the_last_evaluation(checkpoint_every: int) -> None:
    world = make_world()

    async def kill() -> None:
        await until(lambda: world.controller.phase is Phase.FINISHING)
        await until(lambda: len(world.checkpoints.states) == STEPS // checkpoint_every)
        world.kill_learner()

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=checkpoint_every)), kill())
    assert world.notes.rolled_back_to == [9 if checkpoint_every == 3 else 10]
    assert_every_group_trained_once(world)
    assert [(r.version, r.num_answers) for r in world.notes.results] == [(0, 6), (10, 6)]


async def test_a_death_in_the_first_evaluation_begins_it_again() -> None:
    world = make_world()

    async def kill() -> None:
        await until(lambda: any(engine.open_requests for engine in world.engines.values()))
        assert world.controller.phase is Phase.STARTING
        world.kill_learner()

    await asyncio.gather(world.run(), kill())
    assert world.notes.rolled_back_to == [0]
    assert_every_group_trained_once(world)
    assert [(r.version, r.num_answers) for r in world.notes.results] == [(0, 6), (10, 6)]


async def test_a_death_before_anything_was_published() -> None:
    world = make_world()

    async def kill() -> None:
        await until(lambda: bool(world.learner_lives))
        world.kill_learner()

    await asyncio.gather(world.run(), kill())
    assert_every_group_trained_once(world)
    assert [r.version for r in world.notes.results] == [0, 10]


async def test_a_stop_during_the_restart_ends_at_the_checkpoint() -> None:
    world = make_world()

    async def kill() -> None:
        await until(lambda: world.controller.coordinator.version >= 5)
        world.kill_learner()
        world.controller.stop("asked to")

    await asyncio.gather(world.run(LearnerScript(checkpoint_every=3)), kill())
    assert world.controller.coordinator.version == 3
    counts = world.controller.coordinator.counts
    assert counts.balanced and counts.trained == 12
