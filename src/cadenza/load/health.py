"""What keeps the client's own process out of the measurement, and what it used of the machine while measuring."""

import contextlib
import gc
import time
from collections.abc import Iterator
from pathlib import Path

from cadenza.clock import NS_PER_MS, NS_PER_S
from cadenza.load.transport import Counters
from cadenza.record import WorkerHealth

_TIMER_SLACK = Path("/proc/self/timerslack_ns")
_SCHEDSTAT = Path("/proc/self/schedstat")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection while requests are in flight, and waits that end when they should.

    The load room makes no reference cycles, so nothing piles up meanwhile. Linux may let a wait end 50 µs late to save
    power (timer slack, prctl(2)); here it may not.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    slack = _set_timer_slack(b"1")
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        if slack is not None:
            _set_timer_slack(slack)


class HealthMeter:
    """Begins where it is made, ends with `read`."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._wall_ns = time.monotonic_ns()
        self._cpu_ns = time.process_time_ns()
        self._waited_ns = _waited_ns()
        counters.reads = counters.away_ns = counters.clock_steps = counters.left_ns = 0

    def read(self, worker: int) -> WorkerHealth:
        """What was used since."""
        counters, waited_ns = self._counters, _waited_ns()
        known = waited_ns is not None and self._waited_ns is not None
        return WorkerHealth(
            worker=worker,
            wall_s=(time.monotonic_ns() - self._wall_ns) / NS_PER_S,
            cpu_s=(time.process_time_ns() - self._cpu_ns) / NS_PER_S,
            waited_s=((waited_ns or 0) - (self._waited_ns or 0)) / NS_PER_S if known else None,
            away_ms=counters.away_ns / NS_PER_MS,
            reads=counters.reads,
            clock_steps=counters.clock_steps,
        )


def _set_timer_slack(value: bytes) -> bytes | None:
    """Set it and give what it was; None where there is none to set."""
    try:
        before = _TIMER_SLACK.read_bytes()
        _TIMER_SLACK.write_bytes(value)
    except OSError:
        return None
    return before


def _waited_ns() -> int | None:
    """Documentation/scheduler/sched-stats.rst: time on a core, time waiting for one, number of turns."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
