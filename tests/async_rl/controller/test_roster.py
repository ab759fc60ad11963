"""Who is there, who is left out, and who gets work first."""

from async_rl.controller.roster import GeneratorPeer, Roster


def joined(roster: Roster, incarnation: str, *, name: str = "generator-0", now_s: float = 0.0) -> GeneratorPeer:
    roster.join(name, incarnation, now_s)
    return roster.peers[incarnation]


def test_a_hello_said_twice_changes_nothing() -> None:
    roster = Roster()
    peer = joined(roster, "a")
    peer.limit = 3
    assert roster.join("generator-0", "a", 5.0) == []
    assert roster.peers["a"] is peer and peer.limit == 3


def test_a_new_life_of_a_name_ends_the_old_one() -> None:
    roster = Roster()
    joined(roster, "a")
    joined(roster, "b", name="generator-1")
    assert roster.join("generator-0", "c", 1.0) == ["a"]
    assert set(roster.peers) == {"b", "c"}


def test_credit_is_what_the_limit_leaves_and_never_negative() -> None:
    peer = joined(Roster(), "a")
    assert peer.credit == 0
    peer.limit, peer.granted = 5, 2
    assert peer.credit == 3
    peer.limit = 1
    assert peer.credit == 0


def test_only_who_was_not_heard_for_long_is_silent() -> None:
    roster = Roster()
    joined(roster, "a")
    joined(roster, "b", name="generator-1")
    assert roster.heard("b", 8.0) is roster.peers["b"]
    assert roster.silent(10.0, 10.0) == []
    assert roster.silent(10.5, 10.0) == ["a"]
    assert roster.heard("nobody", 8.0) is None


def test_who_is_given_up_comes_back_with_its_weights_but_without_credit() -> None:
    roster = Roster()
    peer = joined(roster, "a")
    roster.activate(peer, 7)
    peer.limit, peer.granted = 9, 4
    roster.give_up("a")
    assert roster.peers == {}
    assert roster.take_back("a", 3.0)
    assert roster.peers["a"].active_version == 7
    assert roster.peers["a"].credit == 0
    assert not roster.take_back("a", 4.0), "it is back already"


def test_a_generator_is_left_out_once_when_it_misses_a_publish_and_is_back_when_it_catches_up() -> None:
    roster = Roster()
    quick, slow = joined(roster, "q", name="generator-0"), joined(roster, "s", name="generator-1")
    for peer in (quick, slow):
        roster.activate(peer, 0)
    roster.publish(1, 10.0)
    assert not roster.activate(quick, 1)
    assert roster.leave_out_late(15.0, 5.0) == []
    assert roster.leave_out_late(15.1, 5.0) == [slow]
    assert slow.is_left_out and slow.missed_version == 1 and not quick.is_left_out
    assert roster.leave_out_late(20.0, 5.0) == [], "it has been named"
    assert not roster.activate(slow, 0), "an older version does not catch up"
    assert roster.activate(slow, 1)
    assert not slow.is_left_out


def test_later_publishes_give_nobody_more_time() -> None:
    roster = Roster()
    stuck = joined(roster, "a")
    roster.activate(stuck, 3)
    for version in range(4, 10):
        roster.publish(version, float(version))
    assert roster.leave_out_late(9.5, 5.0) == [stuck]
    assert stuck.missed_version == 4
    assert roster.activate(stuck, 9), "versions in between may be skipped"


def test_the_deadline_of_a_late_comer_runs_from_its_hello() -> None:
    roster = Roster()
    roster.publish(1, 0.0)
    late_comer = joined(roster, "a", now_s=100.0)
    assert roster.leave_out_late(104.0, 5.0) == []
    assert roster.leave_out_late(106.0, 5.0) == [late_comer]


def test_versions_that_everybody_has_are_forgotten() -> None:
    roster = Roster()
    peer = joined(roster, "a")
    for version in range(100):
        roster.publish(version, 0.0)
        roster.activate(peer, version)
    assert list(roster.published_s) == [99]


def test_the_freshest_come_first_and_then_those_with_the_most_room() -> None:
    roster = Roster()
    for name, version, limit in (("generator-0", 1, 9), ("generator-1", 2, 1), ("generator-2", 2, 5)):
        peer = joined(roster, name, name=name)
        peer.active_version, peer.limit = version, limit
    assert [p.name for p in roster.by_freshness()] == ["generator-2", "generator-1", "generator-0"]
    assert [p.name for p in roster.by_name()] == ["generator-0", "generator-1", "generator-2"]


def test_when_the_learner_has_gone_back_nobody_samples_or_is_late_until_it_has_the_next_publish() -> None:
    roster = Roster()
    peer, gone = joined(roster, "a"), joined(roster, "b", name="generator-1")
    for version in (3, 4):
        roster.publish(version, 0.0)
    roster.activate(peer, 4)
    roster.activate(gone, 2)
    assert roster.leave_out_late(20.0, 10.0) == [gone]
    roster.give_up("b")
    roster.begin_history(100.0)
    assert not peer.has_weights and roster.num_sampling == 0
    assert roster.silent(105.0, 10.0) == [], "nobody could be heard meanwhile"
    assert roster.leave_out_late(500.0, 10.0) == []
    roster.publish(1, 500.0)
    roster.take_back("b", 501.0)
    roster.activate(peer, 1)
    assert (roster.num_sampling, roster.peers["b"].has_weights) == (1, False)
    assert roster.leave_out_late(520.0, 10.0) == [roster.peers["b"]]
    assert roster.activate(roster.peers["b"], 1), "its version was larger once, of weights that are no more"
