"""The first Ctrl-C waits for the step, the second does not, and before the first step none does."""

import signal

import pytest

from async_rl.launch.stop_request import StopRequest


def test_the_first_signal_is_a_request_and_the_second_an_interrupt() -> None:
    said: list[str] = []
    stop = StopRequest(said.append)
    stop.has_begun()
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        assert stop.is_made
        assert said == ["SIGINT: stopping after this step, with a checkpoint; once more stops at once"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_a_wish_for_a_checkpoint_is_taken_once_and_ends_nothing() -> None:
    said: list[str] = []
    stop = StopRequest(said.append)
    with stop.listening():
        assert not stop.take_wish()
        signal.raise_signal(signal.SIGUSR1)
        assert stop.take_wish() and not stop.take_wish() and not stop.is_made
    assert said == ["SIGUSR1: a checkpoint will be written after this step"]


def test_before_there_is_anything_to_keep_the_first_interrupts() -> None:
    stop = StopRequest(lambda message: None)
    with stop.listening(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not stop.is_made


def test_afterwards_signals_are_whose_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest(lambda message: None).listening():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
