"""The coordinator under any order of events: the ledger's equation and the staleness bound always hold."""

from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from async_rl.config.schema import OverBound
from async_rl.coordinator import Coordinator, mirror_versions
from async_rl.ledger import Counts, LedgerSnapshot, State
from async_rl.protocol import TrajectoryGroup
from async_rl.staleness import StalenessGate
from tests.async_rl.groups import make_group

STEPS = 30
LEASE_S = 10.0


def make_coordinator(
    *, maximum: int, depth: int, groups_per_step: int = 2, over_bound: OverBound = OverBound.wait, steps: int = STEPS
) -> Coordinator:
    gate = StalenessGate(max=maximum, depth=depth, groups_per_step=groups_per_step, steps=steps)
    return Coordinator.create(gate, over_bound, max_attempts=3)


@dataclass(frozen=True)
class Kept:
    """The last checkpoint, with the test's own account of what it had trained."""

    version: int
    snapshot: LedgerSnapshot
    trained: Counter[int]


class Loop(RuleBasedStateMachine):
    """Generators, a learner and a channel that do anything they might, beside a naive account of it all.

    The account keeps plain sets of ids, and the tokens' versions that the test itself made up.
    """

    @initialize(
        maximum=st.integers(0, 3),
        data=st.data(),
        groups_per_step=st.integers(1, 3),
        over_bound=st.sampled_from(OverBound),
    )
    def begin(self, maximum: int, data: st.DataObject, groups_per_step: int, over_bound: OverBound) -> None:
        depth = data.draw(st.integers(0, maximum))
        self.coordinator = make_coordinator(
            maximum=maximum, depth=depth, groups_per_step=groups_per_step, over_bound=over_bound
        )
        self.now_s = 0.0
        self.births = 0
        self.lives: dict[str, int] = {}  # active version by incarnation
        self.start_generator(0)
        self.start_generator(0)
        self.work: list[tuple[int, int, str, int]] = []  # (group, attempt, incarnation, version at the start)
        self.sent: list[TrajectoryGroup] = []
        self.journal: dict[int, TrajectoryGroup] = {}
        self.trained: Counter[int] = Counter()
        self.seen_ids: set[int] = set()
        self.published = 0
        self.kept = Kept(0, self.coordinator.snapshot(), Counter())

    def start_generator(self, version: int) -> None:
        self.lives[f"g{self.births:03d}"] = version
        self.births += 1

    # --- generators ---

    @rule(data=st.data(), wanted=st.integers(1, 5))
    def lease(self, data: st.DataObject, wanted: int) -> None:
        holder = data.draw(st.sampled_from(sorted(self.lives)))
        active = self.lives[holder]
        for terms in self.coordinator.lease(holder, active, wanted=wanted, now_s=self.now_s, timeout_s=LEASE_S):
            self.work.append((terms.group_id, terms.attempt, holder, active))
            self.seen_ids.add(terms.group_id)

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.work))
        self.work.remove(item)
        group_id, attempt, incarnation, begun = item
        newest = self.lives.get(incarnation, begun)
        versions = tuple(sorted(data.draw(st.lists(st.integers(begun, newest), min_size=1, max_size=3))))
        group = make_group(group_id, versions, attempt=attempt, incarnation=incarnation)
        self.receive(group, has_signal=data.draw(st.integers(0, 9)) > 0)

    @precondition(lambda self: self.work)
    @rule()
    def everything_arrives(self) -> None:
        """Without this rule, random steps rarely get far."""
        for group_id, attempt, incarnation, begun in self.work:
            self.receive(make_group(group_id, (begun,), attempt=attempt, incarnation=incarnation), has_signal=True)
        self.work.clear()

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        before = self.coordinator.counts
        group = data.draw(st.sampled_from(self.sent))
        assert not self.coordinator.deliver(group)
        assert self.coordinator.counts == before

    def receive(self, group: TrajectoryGroup, *, has_signal: bool) -> None:
        counted = self.coordinator.deliver(group, has_signal=has_signal)
        self.sent.append(group)
        if counted and has_signal:
            self.journal[group.group_id] = group

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.work))
        self.work.remove(item)
        self.coordinator.give_back(item[0], item[1], item[2], "reward raised")

    @rule(data=st.data())
    def die_and_start_again(self, data: st.DataObject) -> None:
        incarnation = data.draw(st.sampled_from(sorted(self.lives)))
        del self.lives[incarnation]
        self.start_generator(self.published)
        self.coordinator.ledger.give_back_all(incarnation, "died")
        # Its last deliveries may still be on the way: `work` keeps them.

    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        incarnation = data.draw(st.sampled_from(sorted(self.lives)))
        self.lives[incarnation] = data.draw(st.integers(self.lives[incarnation], self.published))

    # --- time and the learner ---

    @rule(elapsed_s=st.floats(0, 2 * LEASE_S))
    def time_passes(self, elapsed_s: float) -> None:
        self.now_s += elapsed_s
        self.coordinator.ledger.expire(self.now_s)

    @precondition(lambda self: not self.coordinator.batch and self.coordinator.version < STEPS)
    @rule()
    def ask_for_a_batch(self) -> None:
        maximum = self.coordinator.gate.max
        over_bound = self.coordinator.buffer.over_bound
        version = self.coordinator.version
        decision = self.coordinator.select()
        if over_bound is OverBound.wait:
            assert not decision.stale and not decision.requeued
        for group in decision.groups:
            if over_bound in (OverBound.wait, OverBound.drop, OverBound.requeue):
                assert version - group.oldest_version <= maximum
            if over_bound is OverBound.mask:
                assert version - group.newest_version <= maximum, "some token must be inside the bound"

    @precondition(lambda self: self.coordinator.batch)
    @rule()
    def train(self) -> None:
        self.trained.update(g.group_id for g in self.coordinator.batch)
        self.coordinator.commit(self.coordinator.version + 1)

    @rule()
    def publish(self) -> None:
        self.published = self.coordinator.version

    @precondition(lambda self: not self.coordinator.batch)
    @rule()
    def checkpoint(self) -> None:
        self.kept = Kept(self.coordinator.version, self.coordinator.snapshot(), Counter(self.trained))
        self.journal = {i: group for i, group in self.journal.items() if i not in self.trained}

    @rule()
    def restart_from_the_checkpoint(self) -> None:
        before, self.trained = self.coordinator, Counter(self.kept.trained)
        self.coordinator = Coordinator.restore(
            before.gate,
            before.buffer.over_bound,
            max_attempts=3,
            version=self.kept.version,
            snapshot=self.kept.snapshot,
            journal=self.journal.values(),
        )
        self.seen_ids = set(range(max([self.kept.snapshot.issued, *(i + 1 for i in self.journal)])))
        assert self.coordinator.counts.leased == 0
        unseen = set(self.journal) - set(self.trained)
        delivered = set(self.coordinator.ledger.in_state(State.DELIVERED))
        assert delivered <= unseen
        self.journal = {i: group for i, group in self.journal.items() if i in delivered}
        self.lives.clear()
        self.work.clear()
        self.published = self.kept.version
        self.start_generator(self.published)
        self.start_generator(self.published)

    # --- what always holds ---

    @invariant()
    def every_issued_group_is_somewhere(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        counts = self.coordinator.counts
        assert counts.balanced
        assert counts.issued == len(self.seen_ids) == max(self.seen_ids, default=-1) + 1
        assert counts.trained == sum(self.trained.values())
        assert counts.batched == len(self.coordinator.batch)
        assert counts.delivered == len(self.coordinator.buffer.groups)

    @invariant()
    def no_group_trains_twice(self) -> None:
        assert all(n == 1 for n in getattr(self, "trained", Counter()).values())

    @invariant()
    def what_is_outstanding_can_still_meet_the_bound(self) -> None:
        if not hasattr(self, "coordinator") or self.coordinator.buffer.over_bound is not OverBound.wait:
            return
        c = self.coordinator
        deadlines = [*c.leased_deadlines().values(), *c.buffer.deadlines()]
        next_version = c.version + (1 if c.batch else 0)
        assert c.gate.crowded(deadlines, next_version) is None


Loop.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestLoop = Loop.TestCase


def run_lease(c: Coordinator, holder: str, active: int, wanted: int) -> list[int]:
    return [t.group_id for t in c.lease(holder, active, wanted=wanted, now_s=0.0, timeout_s=LEASE_S)]


def test_synchronous_leases_one_batch_and_waits_for_the_next_version() -> None:
    c = make_coordinator(maximum=0, depth=0)
    assert run_lease(c, "g0", 0, 9) == [0, 1]
    for group_id in (0, 1):
        assert c.deliver(make_group(group_id))
    assert len(c.select().groups) == 2
    assert run_lease(c, "g0", 0, 9) == []
    c.commit(1)
    assert run_lease(c, "g0", 0, 9) == [], "version 0 is too old for the batch of version 1"
    assert run_lease(c, "g0", 1, 9) == [2, 3]


def test_a_batch_waits_for_a_straggler_that_would_pass_the_bound() -> None:
    c = make_coordinator(maximum=1, depth=1)
    assert run_lease(c, "g0", 0, 4) == [0, 1, 2, 3]
    for group_id in (1, 2):
        c.deliver(make_group(group_id))
    assert [g.group_id for g in c.select().groups] == [1, 2]
    c.commit(1)
    run_lease(c, "g0", 1, 4)
    c.deliver(make_group(3))
    c.deliver(make_group(4, (1,)))
    decision = c.select()
    assert decision.groups == [] and decision.awaited == [0]
    c.deliver(make_group(0))
    assert [g.group_id for g in c.select().groups] == [0, 3]


def test_drop_makes_the_straggler_stale_and_gives_its_place_back() -> None:
    c = make_coordinator(maximum=0, depth=0, over_bound=OverBound.drop, groups_per_step=1)
    assert run_lease(c, "g0", 0, 1) == [0]
    c.deliver(make_group(0, (-1,)))
    decision = c.select()
    assert decision.stale == [0] and decision.groups == []
    assert c.counts.stale == 1
    assert run_lease(c, "g0", 0, 1) == [1]


def test_versions_undone_by_a_restart_keep_their_distance() -> None:
    mirrored = mirror_versions(make_group(0, (3, 5, 7)), 5)
    assert [s.version for s in mirrored.trajectories[0].spans] == [3, 5, 3]
    untouched = make_group(0, (3, 5))
    assert mirror_versions(untouched, 5) is untouched


def test_counts_name_every_state() -> None:
    assert set(Counts.__struct_fields__) == {"issued", *(s.value for s in State)}


def test_a_generator_gets_no_lease_that_only_the_batch_in_training_could_have_taken() -> None:
    c = make_coordinator(maximum=1, depth=1)
    for group_id in run_lease(c, "g0", 0, 4):
        c.deliver(make_group(group_id))
    c.select()
    c.commit(1)
    assert [g.group_id for g in c.select().groups] == [2, 3]
    assert run_lease(c, "g0", 0, 4) == [], "its tokens would be 2 versions old in the batch of version 2"
    assert run_lease(c, "g0", 1, 4) == [4, 5]


def test_a_restart_generates_again_what_the_lost_history_left_too_far_away() -> None:
    c = make_coordinator(maximum=2, depth=1, groups_per_step=1)
    snapshot = c.snapshot()
    journal = [make_group(0, (1,)), make_group(1, (2,)), make_group(2, (3,)), make_group(3, (0,))]
    restored = Coordinator.restore(
        c.gate, OverBound.wait, max_attempts=3, version=0, snapshot=snapshot, journal=journal
    )
    assert restored.buffer.groups.keys() == {0, 1, 3}, "version 3 of the lost history is 3 updates from version 0"
    assert sorted(restored.ledger.in_state(State.QUEUED)) == [2]
    assert [g.group_id for g in restored.select().groups] == [1], "the earliest deadline first"


def test_what_a_generator_could_not_finish_goes_to_another_one() -> None:
    c = make_coordinator(maximum=1, depth=1)

    def lease(holder: str, *, is_alone: bool) -> list[int]:
        terms = c.lease(holder, 0, wanted=4, now_s=0.0, timeout_s=LEASE_S, is_alone=is_alone)
        return [t.group_id for t in terms]

    for group_id in lease("bad", is_alone=False):
        c.give_back(group_id, 0, "bad", "it always fails")
    assert lease("bad", is_alone=False) == [], "neither its own failures, nor new prompts to fail"
    assert c.counts.issued == 4
    assert lease("good", is_alone=False) == [0, 1, 2, 3]
    for group_id in range(4):
        c.give_back(group_id, 1, "good", "it died")
    assert lease("bad", is_alone=False) == [0, 1, 2, 3], "the last failure was another's"


def test_a_generator_alone_tries_again() -> None:
    c = make_coordinator(maximum=1, depth=1)
    for group_id in run_lease(c, "g0", 0, 4):
        c.give_back(group_id, 0, "g0", "reward raised")
    assert run_lease(c, "g0", 0, 4) == [0, 1, 2, 3]
