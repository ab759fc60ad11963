"""What the death of a process does to a run: errors as Ray raises them, awaitables in the place of its calls."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayTaskError

from async_rl.controller.controller import Controller
from async_rl.errors import NonFiniteError, ResourceError, RewardError, RunError
from async_rl.launch.supervision import Supervisor


@dataclass
class HeardByController:
    """What a supervisor tells a controller."""

    died: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    has_left: bool = False

    def generator_died(self, name: str, reason: str) -> None:
        self.died.append((name, reason))

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def report(self, message: str) -> None:
        self.reports.append(message)

    def learner_left(self) -> None:
        self.has_left = True


class Remote:
    """An actor whose `run.remote` gives one outcome after the other."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self._outcomes = list(outcomes)
        self.run = self
        self.addresses: list[str] = []

    async def remote(self, address: str) -> None:
        self.addresses.append(address)
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome


def task_error(cause: Exception) -> RayTaskError:
    return RayTaskError("run", "traceback", cause)


def death() -> ActorDiedError:
    return ActorDiedError()


@pytest.fixture(autouse=True)
def restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process has to begin."""
    monkeypatch.setattr("async_rl.launch.supervision.RESTART_S", 0.0)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Actors that were asked to be killed: the calls would need a running Ray."""
    actors: list[object] = []
    monkeypatch.setattr("ray.kill", lambda actor, *, no_restart: actors.append(actor))
    return actors


def supervise(controller: HeardByController, *, max_restarts: int = 2, folder: Path = Path()) -> Supervisor:
    return Supervisor(cast(Controller, controller), max_restarts=max_restarts, folder=folder)


async def watched(supervisor: Supervisor, *actors: Remote) -> None:
    for number, actor in enumerate(actors):
        supervisor.watch_generator(f"generator-{number}", cast(ActorHandle, actor), "tcp://somewhere")
    await supervisor.release(1.0)


async def test_a_dead_generator_runs_again_and_its_death_is_told() -> None:
    controller, actor = HeardByController(), Remote(death(), None)
    await watched(supervise(controller), actor)
    assert len(controller.died) == 1 and controller.died[0][0] == "generator-0"
    assert "\n" not in controller.died[0][1]
    assert len(actor.addresses) == 2
    assert controller.failures == []


async def test_a_generator_that_raises_is_killed_before_it_runs_again(killed: list[object]) -> None:
    controller, actor = HeardByController(), Remote(task_error(RuntimeError("half loaded")), None)
    await watched(supervise(controller), actor)
    assert killed == [actor]
    assert controller.died == [("generator-0", "RuntimeError: half loaded")]


async def test_a_users_mistake_ends_the_run_with_its_own_words() -> None:
    controller = HeardByController()
    mistake = RewardError("no such function", place="reward.function", remedy="name another")
    await watched(supervise(controller), Remote(task_error(mistake)))
    assert controller.failures == [mistake]
    assert controller.died == []


async def test_a_run_goes_on_without_a_generator_that_keeps_dying_but_not_without_the_last() -> None:
    controller = HeardByController()
    supervisor = supervise(controller, max_restarts=1)
    await watched(supervisor, Remote(death(), death()), Remote(death(), death()))
    assert len(controller.died) == 4
    begun_again = "is started again (1 of 1 times): The actor died unexpectedly"
    assert sum(begun_again in said for said in controller.reports) == 2, "each start is told, with its reason"
    assert sum("goes on without it" in said for said in controller.reports) == 1
    assert len(controller.failures) == 1
    assert str(controller.failures[0]).startswith("no generator is left: generator-1 died 2 times")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (death(), RunError("the learner died: The actor died unexpectedly before finishing this task.")),
        (task_error(KeyError("x")), RunError("the learner failed: KeyError: 'x'")),
        (task_error(NonFiniteError("six steps")), NonFiniteError("six steps")),
    ],
    ids=["died", "raised", "said why"],
)
async def test_the_learners_end_by_an_error_is_the_runs(raised: Exception, told: Exception) -> None:
    controller = HeardByController()
    supervisor = supervise(controller)
    supervisor.watch_learner(failing(raised))
    await supervisor.release(1.0)
    assert not controller.has_left
    assert [(type(e), str(e)) for e in controller.failures] == [(type(told), str(told))]


async def test_a_learner_that_fails_on_a_full_disk_says_so_in_the_words_of_the_disk() -> None:
    controller = HeardByController()
    supervisor = supervise(controller, folder=Path("/proc"))
    supervisor.watch_learner(failing(task_error(RuntimeError("unexpected pos 704 vs 598"))))
    await supervisor.release(1.0)
    (error,) = controller.failures
    assert isinstance(error, ResourceError)
    assert (error.problem, error.place) == ("the learner failed, and the disk is full", "/proc")
    assert "free some disk" in error.remedy


async def test_a_learner_that_returns_has_left() -> None:
    controller = HeardByController()
    supervisor = supervise(controller)
    supervisor.watch_learner(lambda: asyncio.sleep(0))
    await supervisor.release(1.0)
    assert controller.has_left and controller.failures == []


async def test_metrics_that_cannot_be_written_end_the_run() -> None:
    controller = HeardByController()
    supervisor = supervise(controller)
    full = ResourceError("cannot write metrics: disk full", place="metrics.jsonl", remedy="free some disk")
    supervisor.watch_tracker(failing(full))
    await asyncio.sleep(0.01)
    assert controller.failures == [full]


async def test_a_release_waits_for_processes_that_leave_but_never_for_the_tracker() -> None:
    controller = HeardByController()
    supervisor = supervise(controller)
    supervisor.watch_tracker(lambda: asyncio.sleep(60))
    supervisor.watch_learner(lambda: asyncio.sleep(0.05))
    async with asyncio.timeout(5):
        await supervisor.release(30.0)
    assert controller.has_left


async def test_a_release_gives_up_on_who_does_not_leave() -> None:
    controller = HeardByController()
    supervisor = supervise(controller)
    supervisor.watch_learner(lambda: asyncio.sleep(60))
    async with asyncio.timeout(5):
        await supervisor.release(0.01)
    assert not controller.has_left


def failing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        raise error

    return run
