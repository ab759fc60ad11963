"""The learner's desk before many ranks: what one of them is told, all of them are told, whatever happens in between."""

import pytest

from async_rl.config.staleness import OverBound
from async_rl.controller.dealer import Dealer
from async_rl.controller.learner_desk import LearnerDesk
from async_rl.coordinator import Coordinator
from async_rl.evaluation import Evaluation, EvaluationResult
from async_rl.protocol import (
    Arrival,
    Batch,
    BatchRequest,
    CheckpointWritten,
    Commit,
    ControllerMessage,
    End,
    Role,
    Sampling,
    StepMetrics,
    TrajectoryGroup,
)
from async_rl.staleness import StalenessGate
from tests.async_rl.controller.memory_peers import MemoryPeers
from tests.async_rl.controller.world import FLOPS, MemoryCheckpoints, MemoryJournal, Notes
from tests.async_rl.groups import make_group

RANKS = ("learner-0", "learner-1", "learner-2")
"""Of two shards: the third rank is a tensor parallel peer of the second."""
SAMPLING = Sampling(max_tokens=1, temperature=1.0, top_p=1.0, top_k=0)
SHARDS = {"learner-0": 0, "learner-1": 1, "learner-2": 1}


class Hall:
    """A desk of two groups a batch, its coordinator, and what each rank has heard."""

    def __init__(self) -> None:
        gate = StalenessGate(max=1, depth=1, groups_per_step=2, steps=9)
        self.coordinator = Coordinator.create(gate, OverBound.wait, max_attempts=1)
        self.peers = MemoryPeers()
        for rank in RANKS:
            self.peers.connect(Role.LEARNER, rank, rank)
            self.heard(rank)
        self.checkpoints = MemoryCheckpoints()
        self.desk = LearnerDesk(
            coordinator=self.coordinator,
            dealer=Dealer(num_shards=2, mini_batches=1, shares_prefixes=True, flops=FLOPS),
            peers=self.peers,
            journal=MemoryJournal(),
            checkpoints=self.checkpoints,
            observer=Notes(),
            clock=lambda: 0.0,
            trained_tokens=0,
        )

    def deliver(self) -> TrajectoryGroup:
        """A group of the learner's version."""
        terms = self.coordinator.lease("g", self.coordinator.version, wanted=1, now_s=0.0, timeout_s=1.0)
        group = make_group(terms[0].group_id, (self.coordinator.version,), incarnation="g")
        assert self.coordinator.deliver(group)
        return group

    def ask(self, rank: str, version: int, num_arrivals: int | None = None) -> None:
        self.desk.request(rank, BatchRequest(version=version, shard=SHARDS[rank], num_arrivals=num_arrivals))

    def commit(self, version: int, *, checkpoint: bool = False) -> None:
        metrics = StepMetrics(scalars={"learner/tokens": 1.0})
        commit = Commit(version=version, metrics=metrics, checkpoint=checkpoint)
        assert self.desk.commit(commit, next_evaluation_id=0)

    def heard(self, rank: str) -> list[ControllerMessage]:
        """Since it was last asked."""
        box = self.peers.outboxes[rank]
        return [box.get_nowait() for _ in range(box.qsize())]


def the_batch(messages: list[ControllerMessage]) -> Batch:
    (batch,) = messages
    assert isinstance(batch, Batch)
    return batch


async def test_every_rank_gets_its_shard_and_peers_of_a_shard_the_same() -> None:
    hall = Hall()
    groups = [hall.deliver(), hall.deliver()]
    for rank in RANKS:
        hall.ask(rank, 0)
        await hall.desk.serve()
    first, second, third = (the_batch(hall.heard(rank)) for rank in RANKS)
    assert second == third and (first.shard, second.shard) == (0, 1)
    assert first.outline == second.outline and [g.key for g in first.outline] == [g.key for g in groups]
    assert sum(len(part.trajectories) for shard in (first, second) for part in shard.parts) == 4


async def test_a_batch_that_one_rank_has_goes_to_all_though_the_run_is_being_stopped() -> None:
    hall = Hall()
    hall.deliver(), hall.deliver()
    hall.ask("learner-0", 0)
    await hall.desk.serve()
    hall.ask("learner-1", 0)
    await hall.desk.serve_end("stopped")
    hall.ask("learner-0", 0)
    await hall.desk.serve_end("stopped")
    assert all(isinstance(m, Batch) for rank in RANKS[:2] for m in hall.heard(rank))
    # Its answer was lost: it asks again, and gets the same bytes.
    hall.ask("learner-1", 0)
    await hall.desk.serve_end("stopped")
    assert isinstance(hall.heard("learner-1")[0], Batch)


async def test_the_end_comes_to_all_ranks_at_the_same_version_also_to_one_that_is_ahead_of_the_commit() -> None:
    hall = Hall()
    hall.deliver(), hall.deliver()
    for rank in RANKS:
        hall.ask(rank, 0)
    await hall.desk.serve()
    assert all(the_batch(hall.heard(rank)) for rank in RANKS)
    hall.ask("learner-2", 1)
    await hall.desk.serve_end("enough")
    assert hall.heard("learner-2") == [], "until the commit nobody knows whether another batch comes"
    hall.commit(1)
    hall.ask("learner-0", 1)
    hall.ask("learner-1", 1)
    await hall.desk.serve_end("enough")
    assert [hall.heard(rank) for rank in RANKS] == [[End(reason="enough", checkpoint=True)]] * 3


async def test_a_rank_ahead_of_the_commit_gets_the_next_batch_without_asking_again() -> None:
    hall = Hall()
    for _ in range(4):
        hall.deliver()
    hall.ask("learner-0", 0)
    await hall.desk.serve()
    hall.ask("learner-1", 1)
    await hall.desk.serve()
    assert hall.heard("learner-1") == []
    hall.commit(1)
    await hall.desk.serve()
    assert the_batch(hall.heard("learner-1")).version == 1


async def test_a_question_of_an_older_version_gets_no_answer() -> None:
    hall = Hall()
    hall.deliver(), hall.deliver()
    hall.ask("learner-0", 0)
    await hall.desk.serve()
    hall.commit(1)
    hall.ask("learner-1", 0)
    await hall.desk.serve()
    await hall.desk.serve_end("enough")
    assert hall.heard("learner-1") == []


async def test_ranks_that_score_arrivals_all_score_the_same_before_the_same_batch() -> None:
    hall = Hall()
    first = hall.deliver()
    hall.ask("learner-0", 0, 0)
    await hall.desk.serve()
    assert hall.heard("learner-0") == [Arrival(version=0, number=0, group=first)]
    second = hall.deliver()
    hall.ask("learner-0", 0, 1)
    await hall.desk.serve()
    assert isinstance(hall.heard("learner-0")[0], Batch), "both groups lie there: the batch may start"
    for number, expected in ((0, first), (1, None)):
        hall.ask("learner-1", 0, number)
        await hall.desk.serve()
        (message,) = hall.heard("learner-1")
        if expected is None:
            assert isinstance(message, Batch) and [g.key for g in message.outline] == [first.key, second.key]
        else:
            assert message == Arrival(version=0, number=number, group=expected)


@pytest.mark.parametrize("num_given", [0, 1])
async def test_the_end_waits_until_all_have_scored_what_one_of_them_has(num_given: int) -> None:
    hall = Hall()
    if num_given:
        hall.deliver()
    hall.ask("learner-0", 0, 0)
    await hall.desk.serve()
    hall.ask("learner-1", 0, 0)
    await hall.desk.serve_end("stopped")
    kinds = [[type(m) for m in hall.heard(rank)] for rank in RANKS[:2]]
    assert kinds == ([[Arrival], [Arrival]] if num_given else [[End], [End]])
    if num_given:
        hall.ask("learner-1", 0, 1)
        await hall.desk.serve_end("stopped")
        assert isinstance(hall.heard("learner-1")[0], End)


async def test_a_wish_for_a_checkpoint_goes_with_the_next_batch_to_all_ranks_and_with_no_other() -> None:
    hall = Hall()
    asked = []
    for version in range(3):
        hall.deliver(), hall.deliver()
        if version == 1:
            hall.desk.want_checkpoint()
        for rank in RANKS:
            hall.ask(rank, version)
        await hall.desk.serve()
        asked.append([the_batch(hall.heard(rank)).checkpoint for rank in RANKS])
        hall.commit(version + 1)
    assert asked == [[False] * 3, [True] * 3, [False] * 3]


async def test_an_evaluation_is_the_score_of_its_versions_checkpoint_whichever_comes_first() -> None:
    hall = Hall()
    for version in range(2):
        hall.deliver(), hall.deliver()
        hall.ask("learner-0", version)
        await hall.desk.serve()
        hall.commit(version + 1, checkpoint=True)
    evaluation = Evaluation(version=1, prompts=[], sampling=SAMPLING, samples_per_prompt=1, first_id=0, max_attempts=1)
    hall.desk.evaluated(result(2, 0.5))
    for version in (1, 2):
        written = CheckpointWritten(version=version, folder="x")
        await hall.desk.complete_checkpoint("learner-0", written, next_evaluation_id=0, evaluation=evaluation)
    assert hall.checkpoints.scores == {2: 0.5}
    assert hall.checkpoints.spared == [[1], [1]], "its evaluation goes on"
    hall.desk.evaluated(result(1, 0.25))
    hall.desk.evaluated(result(1, float("nan")))
    assert hall.checkpoints.scores == {1: 0.25, 2: 0.5}
    assert [state.ledger.ended for state in hall.checkpoints.states] == [{"trained": 2}, {"trained": 4}]


def result(version: int, reward: float) -> EvaluationResult:
    return EvaluationResult(version=version, reward=reward, greedy=0.0, num_answers=1, num_failed=0)
