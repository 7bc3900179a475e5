"""Sampling in real time: in a process of its own, which shares only the clock and a file with the client.

It is forked, of low priority, keeps off the core that a worker of the client takes, and ends with its parent. Where it
ends before that (the kernel was short of memory, or somebody killed it) the run hears of it at the next edge of a
point, and starts it anew.
"""

import contextlib
import gc
import itertools
import os
import select
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from cadenza.clock import Clock
from cadenza.errors import UsageError
from cadenza.load.fetch import Page
from cadenza.load.transport import Transport
from cadenza.readings import Collected, Collector
from cadenza.store.telemetry import Header, TelemetryFile
from cadenza.telemetry.sampler import Sampler, State, check_series
from cadenza.watch.machine import scrape

SAMPLER = "sampler"
_FIRST_ROUND_S = 2.0
_FLUSH_S = 4.0
_NICE = 10
_OPEN_AT_MOST = 1 << 20
# What kills it repeatedly is likely to do so again; the run continues without it.
_STARTED_ANEW_AT_MOST = 3


class _FirstRound(msgspec.Struct):
    """What the sampler reports of its first round: series by collector, and two collectors that have the same one."""

    counts: dict[str, int]
    clash: str
    started: bool = True


class Kept(Collector):
    """A collector whose every round goes to the file as it ends; a missing value is written once, then counted."""

    def __init__(self, inner: Collector, file: TelemetryFile, now_ns: Callable[[], int]) -> None:
        self.name = inner.name
        self.missed: Counter[tuple[str, str, str]] = Counter()
        self._inner = inner
        self._file = file
        self._now_ns = now_ns

    def collect(self) -> Collected:
        collected = self._inner.collect()
        if collected.readings:
            self._file.sample(self.name, collected.readings, self._now_ns)
        gaps = [(gap.name, gap.gpu, gap.reason) for gap in collected.missing]
        fresh = [(*gap, 1) for gap in dict.fromkeys(gaps) if gap not in self.missed]
        self.missed.update(gaps)
        if fresh:
            self._file.missing(self.name, fresh, self._now_ns)
        return collected

    def close(self) -> None:
        self._inner.close()

    def sum_up(self) -> None:
        """Append how often each thing was missed."""
        if self.missed:
            self._file.missing(self.name, [(*gap, count) for gap, count in self.missed.items()], self._now_ns)


class EnginePage(Collector):
    """The engine's gauges and counters as a collector's rounds, over a separate transport."""

    name = "engine"

    def __init__(
        self, transport: Transport, pages: Sequence[Page], file: TelemetryFile, now_ns: Callable[[], int]
    ) -> None:
        self.missed: Counter[tuple[str, str, str]] = Counter()
        self._transport = transport
        self._pages = pages
        self._file = file
        self._now_ns = now_ns

    def collect(self) -> Collected:
        page = scrape(self._transport, self._pages, whole=False)
        if page.readings:
            self._file.sample(self.name, page.readings, self._now_ns)
        if page.missing is not None:
            gap = ("page", "", page.missing)
            if gap not in self.missed:
                self._file.missing(self.name, [(*gap, 1)], self._now_ns)
            self.missed[gap] += 1
        return Collected([], [])

    def sum_up(self) -> None:
        """Append how often there was none."""
        if self.missed:
            self._file.missing(self.name, [(*gap, count) for gap, count in self.missed.items()], self._now_ns)


class SamplerProcess:
    """`watch.Sampling` in real time.

    file, header      where the run notes that the sampler ended; the sampler opens the same file in `folder` itself
    interval_s        between two samples, in real time, whatever the run's `clock` is
    make_collectors   called in the sampler's process, for collectors of this machine
    make_transport    likewise, for the engine's `pages`
    notify            called with one line when the process ends early
    """

    def __init__(
        self,
        folder: Path,
        header: Header,
        interval_s: float,
        clock: Clock,
        make_collectors: Callable[[], Sequence[Collector]],
        make_transport: Callable[[], contextlib.AbstractContextManager[Transport]],
        notify: Callable[[str], None],
        file: TelemetryFile,
        pages: Sequence[Page],
    ) -> None:
        self._folder = folder
        self._header = header
        self._interval_s = interval_s
        self._clock = clock
        self._make_collectors = make_collectors
        self._make_transport = make_transport
        self._notify = notify
        self._file = file
        self._pages = pages
        self._child: tuple[int, int] | None = None
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        """Of the process, while it is believed to run."""
        return None if self._child is None else self._child[0]

    def start(self) -> str:
        """Fork the sampler; what it read in its first round, in words. None runs where the kernel refuses the fork.

        UsageError: two collectors have the same series.
        """
        first = self._fork()
        if first.clash:
            self.end()
            raise UsageError(first.clash)
        return _describe(first)

    def _fork(self) -> _FirstRound:
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            with warnings.catch_warnings():
                # numpy's idle threads make Python warn; none of them holds a lock that the sampler takes.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
        except OSError:
            for end in pipes:
                os.close(end)
            return _FirstRound({}, "", started=False)
        alive, ours, heard, theirs = pipes
        if child == 0:
            os.close(ours)
            os.close(heard)
            self._be_sampler(alive, theirs)
        os.close(alive)
        os.close(theirs)
        self._child = (child, ours)
        try:
            answer = os.read(heard, 4096) if _readable(heard, _FIRST_ROUND_S + 1) else b""
        finally:
            os.close(heard)
        try:
            return msgspec.json.decode(answer, type=_FirstRound)
        except (msgspec.MsgspecError, UnicodeError):
            return _FirstRound({}, "", started=False)

    def poll(self, now_ns: int) -> None:
        """Restart the process if it has ended, up to 3 times, and write that to the file."""
        if self._note_death(again=self._deaths < _STARTED_ANEW_AT_MOST) and self._deaths <= _STARTED_ANEW_AT_MOST:
            self._fork()
            if self._child is None:
                self._report("the sampler cannot be restarted; the machine is no longer sampled")

    def end(self) -> None:
        """Let it write its counts, then stop it and wait."""
        if self._child is not None and not self._note_death(again=False):
            _end(*self._child)
            self._child = None

    def _note_death(self, *, again: bool) -> bool:
        """Whether it has ended by itself since the last call; `again`: it will be restarted."""
        how = None if self._child is None else _how_it_ended(self._child[0])
        if self._child is None or how is None:
            return False
        os.close(self._child[1])
        self._child = None
        self._deaths += 1
        with contextlib.suppress(OSError):  # a full disk is reported where records are written
            self._file.mend()
            self._file.missing(SAMPLER, [(SAMPLER, "", "failed", self._deaths)], self._clock.now_ns)
        what = "restarting it" if again else "the machine is no longer sampled"
        self._report(f"the sampler ended early ({how}); {what}")
        return True

    def _report(self, what: str) -> None:
        self._notify(f"  {'telemetry':<10} {what}")

    def _be_sampler(self, alive: int, theirs: int) -> NoReturn:
        """In the child. An interrupt is the parent's to answer; so is its end."""
        code = 1
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, _pass_over)  # not SIG_IGN, which a tool that a collector starts would inherit
            with contextlib.suppress(OSError):
                os.nice(_NICE)
            _leave_core()
            _let_go({alive, theirs})
            self._sample(alive, theirs)
            code = 0
        finally:
            os._exit(code)

    def _sample(self, alive: int, theirs: int) -> None:
        file = TelemetryFile(self._folder, self._header)
        parent, now_ns = os.getppid(), self._clock.now_ns
        with self._make_transport() as transport:
            kept = [Kept(collector, file, now_ns) for collector in self._make_collectors()]
            rounds: list[Kept | EnginePage] = [
                *kept,
                *([EnginePage(transport, self._pages, file, now_ns)] if self._pages else []),
            ]
            sampler = Sampler(rounds, self._interval_s)
            sampler.start()
            sampler.wait(1, _FIRST_ROUND_S)
            os.write(theirs, msgspec.json.encode(_first_round(sampler.states())))
            os.close(theirs)
            while os.getppid() == parent and not _readable(alive, 1.0):
                pass
            sampler.stop()
            for one in rounds:
                one.sum_up()


def _readable(pipe: int, within_s: float) -> bool:
    """Whether there is something to read by then, or the other end is closed."""
    # select refuses numbers from 1024 on, and a run with many connections has no others left.
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    return bool(waiting.poll(1000 * within_s))


def _first_round(states: Sequence[State]) -> _FirstRound:
    clash = ""
    try:
        check_series(states)
    except UsageError as error:
        clash = str(error)
    return _FirstRound({state.collector: len(state.readings) for state in states if state.collector != "engine"}, clash)


def _describe(first: _FirstRound) -> str:
    """How many series each collector has."""
    if not first.started:
        return "the sampler did not start"
    seen = [f"{name} ({count} series)" for name, count in first.counts.items() if count]
    return ", ".join(seen) if seen else "no machine metrics"


def _how_it_ended(child: int) -> str | None:
    """None: it runs, or is stopped."""
    try:
        ended, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:  # somebody else has waited for it
        return "unknown"
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return f"exit status {code}" if code >= 0 else f"killed by signal {-code}"


def _let_go(kept: set[int]) -> None:
    """Close what the parent had open, so that no reader of it waits for the sampler.

    The objects behind it are not to be collected: they would close the numbers again, which are others' by then.
    """
    gc.freeze()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    edges = [2, *sorted(kept), min(os.sysconf("SC_OPEN_MAX"), _OPEN_AT_MOST)]
    for below, above in itertools.pairwise(edges):
        os.closerange(below + 1, above)


def _pass_over(number: int, frame: object) -> None:
    """The parent answers."""


def _leave_core() -> None:
    """The client's workers take the last cores, one each; the sampler keeps off the last one."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[:-1])


def _end(child: int, ours: int) -> None:
    """Ask it to flush and stop, then wait; a process blocked in the kernel is killed."""
    os.close(ours)
    for patience_s in (_FLUSH_S, 1.0):
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            try:
                if os.waitpid(child, os.WNOHANG)[0]:
                    return
            except ChildProcessError:  # somebody else has waited for it
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
