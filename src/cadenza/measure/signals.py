"""Ctrl-C and SIGTERM as a question that a loop asks, so that everything ends with its report."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """A predicate that turns true at the first Ctrl-C or SIGTERM; a second one stops at once."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
