"""The ledger alone: each transition, each refusal, and what survives a restart."""

import pytest

from async_rl.ledger import Counts, Ledger, State


def leased(ledger: Ledger, holder: str = "g0", expires_s: float = 10.0) -> tuple[int, int]:
    group_id = ledger.issue()
    return group_id, ledger.lease(group_id, holder, version=0, expires_s=expires_s)


def test_a_group_that_trains_passes_every_state_once() -> None:
    ledger = Ledger(max_attempts=3)
    group_id, attempt = leased(ledger)
    assert ledger.counts.leased == 1
    assert ledger.deliver(group_id, attempt, "g0")
    assert ledger.counts.delivered == 1
    ledger.batch([group_id], version=0)
    assert ledger.counts.batched == 1
    assert ledger.train(0) == [group_id]
    assert ledger.counts == Counts(
        issued=1, trained=1, stale=0, filtered=0, failed=0, queued=0, leased=0, delivered=0, batched=0
    )


@pytest.mark.parametrize(
    ("attempt", "holder"), [(0, "another generator"), (1, "g0"), (0, "g0")], ids=["holder", "attempt", "twice"]
)
def test_only_the_first_delivery_of_the_current_lease_counts(attempt: int, holder: str) -> None:
    ledger = Ledger(max_attempts=3)
    group_id, _ = leased(ledger)
    if (attempt, holder) == (0, "g0"):
        assert ledger.deliver(group_id, 0, "g0")
    before = ledger.counts
    assert not ledger.deliver(group_id, attempt, holder)
    assert ledger.counts == before


def test_a_delivery_after_the_group_trained_is_a_duplicate() -> None:
    ledger = Ledger(max_attempts=3)
    group_id, attempt = leased(ledger)
    ledger.deliver(group_id, attempt, "g0")
    ledger.batch([group_id], version=0)
    ledger.train(0)
    assert not ledger.deliver(group_id, attempt, "g0")


def test_an_expired_lease_queues_again_with_its_attempt_counted() -> None:
    ledger = Ledger(max_attempts=3)
    group_id, _ = leased(ledger, expires_s=10.0)
    assert ledger.expire(9.9) == []
    assert ledger.expire(10.0) == [(group_id, "g0")]
    assert list(ledger.in_state(State.QUEUED)) == [group_id]
    assert ledger.lease(group_id, "g1", version=0, expires_s=20.0) == 1
    assert not ledger.deliver(group_id, 0, "g0"), "the first lease has ended"
    assert ledger.deliver(group_id, 1, "g1")


def test_a_poison_prompt_fails_after_max_attempts_with_its_reason() -> None:
    ledger = Ledger(max_attempts=2)
    group_id, attempt = leased(ledger)
    assert ledger.give_back(group_id, attempt, "g0", "reward raised") is State.QUEUED
    attempt = ledger.lease(group_id, "g0", version=0, expires_s=10.0)
    assert ledger.give_back(group_id, attempt, "g0", "reward raised") is State.FAILED
    assert ledger.counts.failed == 1
    assert ledger.reasons == {"reward raised": 2}
    assert not list(ledger.in_state(State.QUEUED))


def test_a_requeued_group_keeps_its_chances_but_not_its_old_delivery() -> None:
    ledger = Ledger(max_attempts=1)
    group_id, first = leased(ledger)
    ledger.deliver(group_id, first, "g0")
    ledger.requeue(group_id)
    second = ledger.lease(group_id, "g0", version=1, expires_s=10.0)
    assert not ledger.deliver(group_id, first, "g0"), "the old delivery, sent twice"
    assert ledger.deliver(group_id, second, "g0")


def test_a_death_gives_back_only_the_dead_generators_leases() -> None:
    ledger = Ledger(max_attempts=3)
    mine, _ = leased(ledger, "g0")
    other, attempt = leased(ledger, "g1")
    assert ledger.give_back_all("g0", "died") == [mine]
    assert ledger.deliver(other, attempt, "g1")
    assert ledger.counts.queued == 1


def test_restore_delivers_the_journal_queues_the_rest_and_skips_no_id() -> None:
    ledger = Ledger(max_attempts=3)
    trained, attempt = leased(ledger)
    ledger.deliver(trained, attempt, "g0")
    ledger.batch([trained], version=0)
    ledger.train(0)
    delivered, attempt = leased(ledger)
    ledger.deliver(delivered, attempt, "g0")
    lost, attempt = leased(ledger)
    ledger.give_back(lost, attempt, "g0", "timed out")
    restored = Ledger.restore(ledger.snapshot(), [delivered, 5], max_attempts=3)
    assert sorted(restored.in_state(State.DELIVERED)) == [delivered, 5]
    assert sorted(restored.in_state(State.QUEUED)) == [lost, 3, 4]
    assert restored.records[lost].failures == 1
    assert restored.counts.issued == 6
    assert restored.counts.trained == 1
    assert restored.counts.balanced


def test_counts_are_unbalanced_when_a_group_is_lost() -> None:
    ledger = Ledger(max_attempts=1)
    ledger.issue()
    del ledger.records[0]
    assert not ledger.counts.balanced
