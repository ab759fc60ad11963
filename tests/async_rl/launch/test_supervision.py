"""What the death of a process does to a run: errors as Ray raises them, awaitables in the place of its calls."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from async_rl.controller.controller import Controller
from async_rl.errors import DamagedCheckpoint, ModelError, NonFiniteError, ResourceError, RewardError, RunError
from async_rl.launch.supervision import Supervisor


@dataclass
class HeardByController:
    """What a supervisor tells a controller."""

    died: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    has_left: bool = False
    lives: list[frozenset[str]] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=lambda: [2, 4])
    """Versions that the run goes back to, one death after the other."""
    passed_over: list[Path] = field(default_factory=list)
    coordinator: SimpleNamespace = field(default_factory=SimpleNamespace)

    def learner_begins(self, ranks: frozenset[str]) -> None:
        self.lives.append(ranks)

    async def roll_back(self) -> Path | None:
        self.coordinator.version = self.checkpoints.pop(0)
        return Path(str(self.coordinator.version))

    async def pass_over(self, checkpoint: Path) -> Path | None:
        self.passed_over.append(checkpoint)
        return await self.roll_back() if self.checkpoints else None

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

    async def remote(self, address: str, scores: str | None = None) -> None:
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


class Group:
    """Ranks whose lives end as they are told."""

    def __init__(self, *ends: dict[str, RayError]) -> None:
        self._ends = list(ends)
        self.events: list[object] = []

    def begin(self) -> frozenset[str]:
        self.events.append("begin")
        return frozenset({f"life {self.events.count('begin')}"})

    async def run(self, address: str, checkpoint: Path | None) -> dict[str, RayError]:
        self.events.append(checkpoint)
        return self._ends.pop(0)

    async def end(self) -> None:
        self.events.append("end")


def supervise(
    controller: HeardByController, *, generators: int = 2, learner: int = 2, folder: Path = Path()
) -> Supervisor:
    return Supervisor(
        cast(Controller, controller), generator_restarts=generators, learner_restarts=learner, folder=folder
    )


async def learned(supervisor: Supervisor, group: Group) -> None:
    supervisor.watch_learner(group, "tcp://somewhere", None)
    await supervisor.release(1.0)


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
    supervisor = supervise(controller, generators=1)
    await watched(supervisor, Remote(death(), death()), Remote(death(), death()))
    assert len(controller.died) == 4
    begun_again = "is started again (1 of 1 times): The actor died unexpectedly"
    assert sum(begun_again in said for said in controller.reports) == 2, "each start is told, with its reason"
    assert sum("goes on without it" in said for said in controller.reports) == 1
    assert len(controller.failures) == 1
    assert str(controller.failures[0]).startswith("no generator is left: generator-1 died 2 times")


async def test_a_learner_that_returns_has_left() -> None:
    controller, group = HeardByController(), Group({})
    await learned(supervise(controller), group)
    assert controller.has_left and controller.failures == []
    assert group.events == ["begin", None]


async def test_a_dead_rank_ends_all_which_are_started_again_from_the_last_checkpoint() -> None:
    controller = HeardByController()
    lost = task_error(RuntimeError("Connection closed by peer"))
    group = Group({"learner-0": lost, "learner-1": death()}, {"learner-0": task_error(KeyError("x"))}, {})
    await learned(supervise(controller), group)
    assert group.events == ["begin", None, "end", "begin", Path("2"), "end", "begin", Path("4")]
    assert controller.lives == [{"life 1"}, {"life 2"}, {"life 3"}]
    assert controller.reports == [
        "learner-1 died: The actor died unexpectedly before finishing this task: "
        "the learner is started again from version 2 (1 of 2 times).",
        "learner-0 failed: KeyError: 'x': the learner is started again from version 4 (2 of 2 times).",
    ]
    assert controller.has_left and controller.failures == []


@pytest.mark.parametrize(
    ("restarts", "told"),
    [
        (0, "learner-0 died: The actor died unexpectedly before finishing this task"),
        (
            1,
            "learner-0 died: The actor died unexpectedly before finishing this task (2 times: learner.max_restarts=1)",
        ),
    ],
)
async def test_a_learner_that_keeps_dying_ends_the_run(restarts: int, told: str) -> None:
    controller, group = HeardByController(), Group({"learner-0": death()}, {"learner-0": death()})
    await learned(supervise(controller, learner=restarts), group)
    assert not controller.has_left
    assert [(type(e), str(e)) for e in controller.failures] == [(RunError, told)]
    assert group.events[-1] == "end" and len(controller.reports) == restarts


@pytest.mark.parametrize(
    "why",
    [ModelError("no such model", place="model.path", remedy="name another"), NonFiniteError("six steps")],
    ids=["a user's mistake", "losses that are not finite"],
)
async def test_what_another_start_would_not_mend_ends_the_run_with_its_own_words(why: Exception) -> None:
    controller, group = HeardByController(), Group({"learner-0": death(), "learner-1": task_error(why)})
    await learned(supervise(controller), group)
    assert controller.failures == [why] and controller.reports == []
    assert group.events == ["begin", None, "end"]


async def test_a_learner_that_fails_on_a_full_disk_says_so_in_the_words_of_the_disk() -> None:
    for error in (task_error(RuntimeError("unexpected pos 704 vs 598")), death()):
        controller = HeardByController()
        await learned(supervise(controller, folder=Path("/proc")), Group({"learner-0": error}))
        (failure,) = controller.failures
        assert isinstance(failure, ResourceError)
        assert (failure.problem, failure.place) == ("learner-0 failed, and the disk is full", "/proc")
        assert "free some disk" in failure.remedy


async def test_a_checkpoint_that_cannot_be_read_ends_the_run() -> None:
    controller = HeardByController(checkpoints=[])
    await learned(supervise(controller), Group({"learner-0": death()}))
    assert [type(error) for error in controller.failures] == [IndexError]


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
    supervisor.watch_learner(Slow(0.05), "tcp://somewhere", None)
    async with asyncio.timeout(5):
        await supervisor.release(30.0)
    assert controller.has_left


async def test_a_release_gives_up_on_who_does_not_leave() -> None:
    controller = HeardByController()
    supervisor = supervise(controller)
    supervisor.watch_learner(Slow(60), "tcp://somewhere", None)
    async with asyncio.timeout(5):
        await supervisor.release(0.01)
    assert not controller.has_left


class Slow(Group):
    """A learner that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__({})
        self._seconds = seconds

    async def run(self, address: str, checkpoint: Path | None) -> dict[str, RayError]:
        await asyncio.sleep(self._seconds)
        return {}


def failing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        raise error

    return run


async def test_a_damaged_checkpoint_is_passed_over_and_counts_as_no_restart() -> None:
    damaged = DamagedCheckpoint("the checkpoint 6 is damaged: a is cut", place="6/a", remedy="an older one")
    group = Group({"learner-0": task_error(damaged)}, {})
    controller = HeardByController(checkpoints=[4])
    supervisor = supervise(controller, learner=0)
    supervisor.watch_learner(group, "tcp://somewhere", Path("6"))
    await supervisor.release(1.0)
    assert controller.passed_over == [Path("6")] and controller.has_left and not controller.failures
    assert group.events == ["begin", Path("6"), "end", "begin", Path("4")]
    assert controller.reports == [
        "the checkpoint 6 is damaged: a is cut: it is set aside, and the run goes on from version 4."
    ]


async def test_where_no_older_checkpoint_is_left_the_damage_ends_the_run() -> None:
    damaged = DamagedCheckpoint("the checkpoint 6 is damaged: a is cut", place="6/a", remedy="begin anew")
    controller = HeardByController(checkpoints=[])
    supervisor = supervise(controller, learner=3)
    supervisor.watch_learner(Group({"learner-0": task_error(damaged)}), "tcp://somewhere", Path("6"))
    await supervisor.release(1.0)
    assert controller.failures == [damaged]
