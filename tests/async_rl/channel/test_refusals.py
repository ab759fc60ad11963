"""Refusals: what strangers send is counted, and the log stays readable."""

from async_rl.channel.refusals import OTHERS, Refusals


def test_a_sender_is_spoken_of_once_an_interval_and_counted_always() -> None:
    refusals = Refusals(log_interval_s=10)
    lines = [refusals.count("g0", "noise", now_s) for now_s in (0, 1, 9.9, 10, 11, 25)]
    assert lines == [
        "refused from 'g0' (1 so far): noise",
        None,
        None,
        "refused from 'g0' (4 so far): noise",
        None,
        "refused from 'g0' (6 so far): noise",
    ]


def test_senders_beyond_the_limit_share_one_count_and_one_line() -> None:
    refusals = Refusals(max_senders=2)
    lines = [refusals.count(f"stranger-{i}", "noise", 0.0) for i in range(1000)]
    assert refusals.by_sender == {"stranger-0": 1, "stranger-1": 1, OTHERS: 998}
    assert sum(line is not None for line in lines) == 3


def test_a_sender_cannot_write_lines_of_its_own() -> None:
    line = Refusals().count("a\nERROR the run has failed", "noise", 0.0)
    assert line is not None and "\n" not in line
