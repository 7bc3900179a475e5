"""Ctrl-C and SIGTERM: the first one asks to stop, the second one stops."""

import signal
import threading

import pytest

from cadenza.measure.signals import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_one_stops(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_off_the_main_thread_handlers_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.extend((signal.getsignal(signal.SIGINT), stop()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]
