"""Every collector on a separate thread, all at one interval: the last round of each, and its age.

So a collector that is stuck (a tool that waits for a dead driver, a sysfs read that sleeps) delays no other, and
`states` never waits for hardware.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.errors import UsageError
from cadenza.readings import DEFAULT_INTERVAL_S, Collected, Collector, Missing, Reading, Reason, Series
from cadenza.record import printable
from cadenza.telemetry.families import FAMILIES

# Readings older than this, or than so many intervals, are dropped: a value that has stopped changing misleads.
STALE_S = 10.0
STALE_INTERVALS = 20
_STOP_S = 2.0


class Round(NamedTuple):
    """One finished round of one collector, on the sampler's clock. `number` counts from 1."""

    number: int
    began_ns: int
    ended_ns: int
    collected: Collected


class State(NamedTuple):
    """One collector at an instant.

    success       its last round has readings and is not stale
    age_s         since the end of that round; since the sampler's beginning where none has ended
    duration_s    of that round; None where none has ended
    missing       values that could not be read, by reason, since the sampler's beginning
    readings      of that round; empty once stale
    last_round    that round, stale or not
    """

    collector: str
    success: bool
    age_s: float
    duration_s: float | None
    missing: dict[Reason, int]
    readings: list[Reading]
    last_round: Round | None


class Sampler:
    """Runs `collectors` every `interval_s` on the grid of their beginning; a round that takes longer skips its turns.

    `start` and `stop` bracket the threads. `poll` is the same without threads: one round of each, here and now.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        interval_s: float = DEFAULT_INTERVAL_S,
        clock: Clock | None = None,
    ) -> None:
        self.collectors = tuple(collectors)
        self._interval_ns = round(interval_s * NS_PER_S)
        self._stale_s = max(STALE_S, STALE_INTERVALS * interval_s)
        self._clock = clock or MonotonicClock()
        self._began_ns = self._clock.now_ns()
        self._rounds: list[Round | None] = [None] * len(self.collectors)
        self._missing: list[Counter[Reason]] = [Counter() for _ in self.collectors]
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin sampling; the first rounds begin at once."""
        for index, collector in enumerate(self.collectors):
            # A daemon: what is stuck in the kernel must not keep the process from ending.
            thread = threading.Thread(
                target=self._sample, args=(index, self._stopped.wait), name=f"sample {collector.name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> list[str]:
        """End sampling and close the collectors; the names of those whose round has not ended and is left behind."""
        self._stopped.set()
        until_ns = self._clock.now_ns() + round(_STOP_S * NS_PER_S)
        for thread in self._threads:
            thread.join(max(0.0, (until_ns - self._clock.now_ns()) / NS_PER_S))
        stuck = [c.name for c, thread in zip(self.collectors, self._threads, strict=False) if thread.is_alive()]
        for collector in self.collectors:
            collector.close()
        return stuck

    def poll(self) -> None:
        """One round of every collector, one after the other, on this thread."""
        for index in range(len(self.collectors)):
            self._round(index)

    def wait(self, rounds: int, timeout_s: float) -> list[str]:
        """Until every collector has finished `rounds` rounds; the names of those that have not after `timeout_s`."""

        def late() -> list[str]:
            return [
                collector.name
                for collector, last in zip(self.collectors, self._rounds, strict=True)
                if last is None or last.number < rounds
            ]

        with self._changed:
            self._changed.wait_for(lambda: not late(), timeout_s)
            return late()

    def check(self, within_s: float) -> None:
        """Wait for the first round of every collector, `within_s` at most, and `check_series` of those that ended."""
        self.wait(1, within_s)
        check_series(self.states())

    def states(self) -> list[State]:
        """Every collector as it is now, in their order; never waits for one."""
        with self._changed:
            rounds = list(self._rounds)
            missing: list[dict[Reason, int]] = [dict(counts) for counts in self._missing]
        now_ns = self._clock.now_ns()
        return [
            self._state(collector, last, counts, now_ns)
            for collector, last, counts in zip(self.collectors, rounds, missing, strict=True)
        ]

    def _state(self, collector: Collector, last: Round | None, missing: dict[Reason, int], now_ns: int) -> State:
        # A round may end between the two reads of the clock: no age is negative.
        age_s = max(0, now_ns - (self._began_ns if last is None else last.ended_ns)) / NS_PER_S
        if last is None:
            return State(collector.name, False, age_s, None, missing, [], None)
        readings = last.collected.readings if age_s <= self._stale_s else []
        duration_s = (last.ended_ns - last.began_ns) / NS_PER_S
        return State(collector.name, bool(readings), age_s, duration_s, missing, readings, last)

    def _sample(self, index: int, wait: Callable[[float], bool]) -> None:
        """Rounds on the grid until `wait(seconds)` returns True."""
        due_ns = self._clock.now_ns()
        while not self._stopped.is_set():
            self._round(index)
            now_ns = self._clock.now_ns()
            if self._interval_ns:
                due_ns += self._interval_ns * max(1, -((due_ns - now_ns) // self._interval_ns))
            if wait(max(0, due_ns - now_ns) / NS_PER_S):
                return

    def _round(self, index: int) -> None:
        before = self._rounds[index]
        began_ns = self._clock.now_ns()
        try:
            collected = _check(self.collectors[index].collect(), [] if before is None else before.collected.readings)
        except Exception:
            # By contract it does not raise. One that does fails alone, and is still polled.
            collected = Collected([], [Missing(self.collectors[index].name, "", "failed")])
        ended_ns = self._clock.now_ns()
        with self._changed:
            number = 1 if before is None else before.number + 1
            self._rounds[index] = Round(number, began_ns, ended_ns, collected)
            self._missing[index].update(missing.reason for missing in collected.missing)
            self._changed.notify_all()


def check_series(states: Iterable[State]) -> None:
    """UsageError, with the names of both, where two collectors have the same series: their values could differ."""
    owners: dict[Series, str] = {}
    for state in states:
        for reading in state.readings:
            owner = owners.setdefault(reading.series, state.collector)
            if owner != state.collector:
                labels = ", ".join(f"{label}={printable(text, 40)}" for label, text in reading.labels)
                raise UsageError(
                    f"the collectors {owner} and {state.collector} both have the series {reading.name}"
                    f"{f' ({labels})' if labels else ''}: leave one of them out"
                )


def _check(collected: Collected, before: Sequence[Reading]) -> Collected:
    """Without what no page could show (no such family, other labels, not finite, not UTF-8), which goes to missing.

    `before` is what fitted in the round before: a series that stands there in the same place fits again.
    """
    readings = collected.readings
    unsure = [
        reading
        for reading, known in zip_longest(readings, before[: len(readings)])
        if known is None
        or known.labels != reading.labels
        or known.name != reading.name
        or not math.isfinite(reading.value)
    ]
    wrong = [reading for reading in unsure if not _fits(reading)]
    if not wrong:
        return collected
    missing = [Missing(name, dict(labels).get("gpu", ""), "malformed") for name, labels, _ in wrong]
    return Collected([reading for reading in readings if _fits(reading)], [*collected.missing, *missing])


def _fits(reading: Reading) -> bool:
    family = FAMILIES.get(reading.name)
    return (
        family is not None
        and tuple([label for label, _ in reading.labels]) == family.labels
        and math.isfinite(reading.value)
        and all(text.isascii() or _is_utf8(text) for _, text in reading.labels)
    )


def _is_utf8(text: str) -> bool:
    """False for what Python makes of a file name that is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
