"""Ctrl-C and SIGTERM as a predicate that a loop evaluates, so that everything ends with its report."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """A predicate that turns true at the first Ctrl-C or SIGTERM; a second one stops at once.

    Off the main thread no handler can be installed: the predicate then stays false.
    """
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
