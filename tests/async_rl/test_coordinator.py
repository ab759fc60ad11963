"""The coordinator under any order of events: the ledger's equation and the staleness bound always hold."""

from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from async_rl.config.staleness import OverBound
from async_rl.coordinator import Coordinator
from async_rl.history import mirror_versions
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
class Weights:
    """A version, and the history that made it: after every restart, versions of the same numbers are others."""

    history: int
    version: int


@dataclass(frozen=True)
class Work:
    """A lease as its generator has it."""

    group_id: int
    attempt: int
    incarnation: str
    began_with: Weights


@dataclass(frozen=True)
class Kept:
    """The last checkpoint, with the test's own account of what it had trained."""

    version: int
    snapshot: LedgerSnapshot
    trained: Counter[int]


class Loop(RuleBasedStateMachine):
    """Generators, a learner and a channel that do anything they might, beside a naive account of it all.

    The account keeps plain sets of ids, and the weights that sampled each token, as the test itself made them up.
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
        self.roots = [0]  # the version at which each history began
        self.published = 0
        self.lives: dict[str, Weights] = {}  # what each incarnation samples with
        self.start_generator()
        self.start_generator()
        self.work: list[Work] = []
        self.sent: list[TrajectoryGroup] = []
        self.sampled_by: dict[int, list[Weights]] = {}  # of the delivery that counted
        self.journal: dict[int, TrajectoryGroup] = {}
        self.trained: Counter[int] = Counter()
        self.seen_ids: set[int] = set()
        self.kept = Kept(0, self.coordinator.snapshot(), Counter())

    @property
    def history(self) -> int:
        return len(self.roots) - 1

    def start_generator(self) -> None:
        self.lives[f"g{self.births:03d}"] = Weights(self.history, self.published)
        self.births += 1

    def staleness(self, weights: Weights) -> int:
        """Updates between some weights and the learner's, by way of where their histories part."""
        fork = min([weights.version, *self.roots[weights.history + 1 :]])
        return weights.version - fork + self.coordinator.version - fork

    # --- generators ---

    @rule(data=st.data(), wanted=st.integers(1, 5))
    def lease(self, data: st.DataObject, wanted: int) -> None:
        ready = sorted(name for name, weights in self.lives.items() if weights.history == self.history)
        if not ready:
            return
        holder = data.draw(st.sampled_from(ready))
        active = self.lives[holder]
        for terms in self.coordinator.lease(holder, active.version, wanted=wanted, now_s=self.now_s, timeout_s=LEASE_S):
            self.work.append(Work(terms.group_id, terms.attempt, holder, active))
            self.seen_ids.add(terms.group_id)

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.work))
        self.work.remove(work)
        history, begun = work.began_with.history, work.began_with.version
        now = self.lives.get(work.incarnation, work.began_with)
        newest = now.version if now.history == history else begun
        versions = sorted(data.draw(st.lists(st.integers(begun, newest), min_size=1, max_size=3)))
        self.receive(work, versions, has_signal=data.draw(st.integers(0, 9)) > 0)

    @precondition(lambda self: self.work)
    @rule()
    def everything_arrives(self) -> None:
        """Without this rule, random steps rarely get far."""
        for work in self.work:
            self.receive(work, [work.began_with.version], has_signal=True)
        self.work.clear()

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        before = self.coordinator.counts
        group = data.draw(st.sampled_from(self.sent))
        assert not self.coordinator.deliver(group)
        assert self.coordinator.counts == before

    def receive(self, work: Work, versions: list[int], *, has_signal: bool) -> None:
        group = make_group(work.group_id, tuple(versions), attempt=work.attempt, incarnation=work.incarnation)
        counted = self.coordinator.deliver(group, has_signal=has_signal)
        self.sent.append(group)
        history = work.began_with.history
        assert not counted or history == self.history, "work of a history that was undone"
        if counted and has_signal:
            self.journal[group.group_id] = group
            self.sampled_by[group.group_id] = [Weights(history, version) for version in versions]

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.work))
        self.work.remove(work)
        state = self.coordinator.give_back(work.group_id, work.attempt, work.incarnation, "reward raised")
        assert state is None or work.began_with.history == self.history

    @rule(data=st.data())
    def die_and_start_again(self, data: st.DataObject) -> None:
        incarnation = data.draw(st.sampled_from(sorted(self.lives)))
        del self.lives[incarnation]
        self.start_generator()
        self.coordinator.ledger.give_back_all(incarnation, "died")
        # Its last deliveries may still be on the way: `work` keeps them.

    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        incarnation = data.draw(st.sampled_from(sorted(self.lives)))
        active = self.lives[incarnation]
        oldest = active.version if active.history == self.history else self.roots[-1]
        self.lives[incarnation] = Weights(self.history, data.draw(st.integers(oldest, self.published)))

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
            staleness = [self.staleness(weights) for weights in self.sampled_by[group.group_id]]
            assert [version - int(v) for v in group.trajectories[0].weight_versions] == staleness
            if over_bound in (OverBound.wait, OverBound.drop, OverBound.requeue):
                assert max(staleness) <= maximum
            if over_bound is OverBound.mask:
                assert min(staleness) <= maximum, "some token must be inside the bound"

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

    @rule(generators_live=st.booleans(), ready=st.booleans())
    def go_back_to_the_checkpoint(self, generators_live: bool, ready: bool) -> None:
        """The learner has died, or every process has.

        Generators that live on have weights and work of the history that is undone, until they activate the new one's.
        """
        before, kept = self.coordinator, self.kept
        self.begin_history()
        journal = self.journal.values()
        if generators_live:
            before.roll_back(version=kept.version, snapshot=kept.snapshot, journal=journal)
            if ready:
                self.lives = dict.fromkeys(self.lives, Weights(self.history, self.published))
        else:
            self.coordinator = Coordinator.restore(
                before.gate,
                before.buffer.over_bound,
                max_attempts=3,
                version=kept.version,
                snapshot=kept.snapshot,
                journal=journal,
            )
            self.work.clear()
            self.lives.clear()
            self.start_generator()
            self.start_generator()
        self.check_restored()

    def begin_history(self) -> None:
        self.roots.append(self.kept.version)
        self.published = self.kept.version
        self.trained = Counter(self.kept.trained)
        self.journal = {i: mirror_versions(group, self.kept.version) for i, group in self.journal.items()}

    def check_restored(self) -> None:
        self.seen_ids = set(range(max([self.kept.snapshot.issued, *(i + 1 for i in self.journal)])))
        assert self.coordinator.counts.leased == 0 and not self.coordinator.batch
        assert set(self.coordinator.ledger.in_state(State.DELIVERED)) <= set(self.journal) - set(self.trained)

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


Loop.TestCase.settings = settings(max_examples=400, stateful_step_count=60, deadline=None)
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
    lost = [make_group(0, (1,)), make_group(1, (2,)), make_group(2, (3,)), make_group(3, (0,))]
    journal = [mirror_versions(group, 0) for group in lost]
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


def test_after_a_roll_back_only_new_leases_count_though_groups_and_generators_are_the_same() -> None:
    c = make_coordinator(maximum=2, depth=1)
    start = c.snapshot()
    assert run_lease(c, "g0", 0, 4) == [0, 1, 2, 3]
    for group_id in (0, 1):
        c.deliver(make_group(group_id))
    c.select()
    c.commit(1)
    c.give_back(2, 0, "g0", "reward raised")
    assert run_lease(c, "g0", 1, 2) == [2, 4]
    c.roll_back(version=0, snapshot=start, journal=[make_group(0), make_group(1)])
    assert (c.version, c.counts.delivered, c.counts.issued) == (0, 2, 2)
    terms = c.lease("g0", 0, wanted=2, now_s=0.0, timeout_s=LEASE_S)
    assert [(t.group_id, t.attempt) for t in terms] == [(2, 2), (3, 2)]
    before = c.counts
    for group_id, attempt in ((2, 0), (2, 1), (3, 0), (4, 0)):
        assert not c.deliver(make_group(group_id, (1,), attempt=attempt)), "its lease ended with its history"
    assert c.counts == before
    assert c.deliver(make_group(2, attempt=2))
