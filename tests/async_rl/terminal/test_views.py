import io
import math
from dataclasses import replace

from rich.console import Console

from async_rl.terminal.live_view import LiveView
from async_rl.terminal.panel import run_panel
from async_rl.terminal.plain_view import PlainView
from async_rl.terminal.status import RunStatus
from async_rl.terminal.view import View, open_view
from tests.async_rl.terminal.snapshots import starting, training


def plain() -> tuple[PlainView, io.StringIO]:
    stream = io.StringIO()
    return PlainView(Console(file=stream, width=60)), stream


def live() -> tuple[LiveView[RunStatus], io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, width=100, height=40, force_terminal=True, _environ={"TERM": "xterm"})
    return LiveView(console, run_panel), stream


def test_plain_lines_are_whole_and_say_where_the_run_is() -> None:
    view, stream = plain()
    view.update(starting())
    view.update(training())
    assert stream.getvalue().splitlines() == [
        "[0:03] starting: step 0/100",
        "[1:20] step 30/100  reward 0.750  loss -0.0123  staleness 1.00 (max 2/4)  generators 1800 tok/s idle 51%  "
        "learner 1700 tok/s idle 12%  left 2:20",
    ]


def test_plain_lines_come_with_steps_but_not_faster_than_one_reads() -> None:
    view, stream = plain()
    view.update(training(version=30, elapsed_s=80.0))
    view.update(training(version=30, elapsed_s=90.0))
    view.update(training(version=31, elapsed_s=80.5))
    view.update(training(version=32, elapsed_s=82.5))
    view.update(training(version=100, elapsed_s=82.6))
    steps = [line.split()[2] for line in stream.getvalue().splitlines()]
    assert steps == ["30/100", "32/100", "100/100"]


def test_a_new_phase_is_news_at_once() -> None:
    view, stream = plain()
    view.update(starting())
    view.update(replace(starting(), phase="training"))
    assert len(stream.getvalue().splitlines()) == 2


def test_the_end_does_not_say_the_last_step_again() -> None:
    view, stream = plain()
    for phase in ("training", "finishing", "ending"):
        view.update(replace(training(version=100), phase=phase))
    assert len(stream.getvalue().splitlines()) == 1


def test_a_batch_without_rewards_has_no_number() -> None:
    view, stream = plain()
    view.update(replace(training(), rewards=(0.5, math.nan)))
    assert "reward –  loss" in stream.getvalue()


def test_messages_are_not_read_as_markup() -> None:
    for view, stream in (plain(), live()):
        view.say("group [7] failed: [bold]no[/bold]")
        assert "group [7] failed: [bold]no[/bold]" in stream.getvalue()


def test_a_live_view_shows_processes_staleness_rewards_and_the_ledger() -> None:
    view, stream = live()
    view.update(training())
    view.close()
    text = stream.getvalue()
    for words in ("generator-0", "generator-1", "learner", "staleness", "▁", "held out", "issued 100", "left 2:20"):
        assert words in text


def test_a_live_view_draws_four_times_a_second_at_most_and_ends_with_the_newest() -> None:
    view, stream = live()
    for tick in range(100):
        view.update(training(version=tick, elapsed_s=80.0 + tick * 0.01))
    view.close()
    text = stream.getvalue()
    assert text.count("async-rl") == 5
    assert "step 99/100" in text


def test_a_view_may_be_closed_twice_and_before_it_was_shown() -> None:
    for view, _ in (plain(), live()):
        view.close()
        view.close()


def test_a_pipe_gets_lines_and_a_terminal_the_live_view() -> None:
    pipe: View = open_view(Console(file=io.StringIO()))
    terminal: View = open_view(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"}))
    assert isinstance(pipe, PlainView)
    assert isinstance(terminal, LiveView)
