"""One clock for a run: integer nanoseconds that never step, with an anchor to the wall.

Nobody sleeps on a clock: waiting is the transport's one blocking verb (`load.transport.Transport.poll`), so that
virtual time needs no second code path.
"""

import time
from typing import Protocol

import msgspec

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Where `now` comes from."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary origin; never decreases."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC, the clock that `time.perf_counter_ns` also reads on Linux; with a `speed`, that much faster.

    The embedded engine can run faster than real time. A client on the same faster clock plans, waits and stamps in
    the engine's time, so that nothing has to be converted afterwards.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._origin_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return self.at_ns(time.monotonic_ns())

    def at_ns(self, monotonic_ns: int) -> int:
        """What this clock shows where CLOCK_MONOTONIC shows `monotonic_ns`."""
        if self.speed == 1.0:
            return monotonic_ns
        return self._origin_ns + round((monotonic_ns - self._origin_ns) * self.speed)

    def real_s(self, ns: int) -> float:
        """How long `ns` of this clock last, in seconds of real time."""
        return ns / (NS_PER_S * self.speed)


class ManualClock:
    """The twin for tests and for virtual time: it moves only on request."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance_to(self, at_ns: int) -> None:
        """Move to `at_ns`; a time in the past leaves the clock where it is."""
        self._now_ns = max(self._now_ns, at_ns)


class Anchor(msgspec.Struct, frozen=True):
    """Two readings of one instant, so that a run's stamps can be put on a calendar afterwards."""

    monotonic_ns: int
    wall_ns: int


def anchor(clock: Clock) -> Anchor:
    """Read both clocks back to back; the error is the time between the two reads, well under a microsecond."""
    return Anchor(monotonic_ns=clock.now_ns(), wall_ns=time.time_ns())
