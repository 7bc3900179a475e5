"""Watching the machine while a sweep runs: a process of its own samples it, and this one reads the engine at the edges.

The sampler shares nothing with the client but the clock and a file: it is forked, of low priority, keeps off the core
that a worker of the client takes, and ends with its parent. What it cannot see it says, and the sweep goes on.
"""

import contextlib
import gc
import itertools
import json
import os
import select
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from cadenza.clock import Clock
from cadenza.errors import TargetError
from cadenza.load.fetch import fetch
from cadenza.load.target import Target, resolve
from cadenza.load.transport import Transport
from cadenza.spec import Telemetry
from cadenza.store.telemetry import Header, TelemetryFile, TelemetryLog, TelemetryReader
from cadenza.telemetry import amd_smi, rocm_smi
from cadenza.telemetry.amdgpu import AmdgpuCollector
from cadenza.telemetry.drm import find_cards
from cadenza.telemetry.engine_page import read_page
from cadenza.telemetry.engine_state import EngineState, Histogram
from cadenza.telemetry.host import HostCollector
from cadenza.telemetry.kernel_log import KernelLog, find_log
from cadenza.telemetry.nvml import NvmlCollector
from cadenza.telemetry.pcie import PcieBandwidth
from cadenza.telemetry.reading import Collected, Collector, Reason
from cadenza.telemetry.sampler import Sampler

Headers = tuple[tuple[str, str], ...]
EDGE = "edge"
_SCRAPE_S = 5.0
_FIRST_ROUND_S = 2.0
_LAST_WORDS_S = 4.0
_NICE = 10
_OPEN_AT_MOST = 1 << 20
_STATUS: dict[int, Reason] = {401: "denied", 403: "denied", 404: "absent", 405: "absent", 501: "not_supported"}


class Page(NamedTuple):
    """An engine's page of metrics; `headers` are sent with the question."""

    target: Target
    path: str
    headers: Headers


class Scraped(NamedTuple):
    """Values by series key, and why there are none."""

    values: dict[str, float]
    missing: Reason | None


def scrape(transport: Transport, pages: Sequence[Page], *, whole: bool) -> Scraped:
    """The engine's state from all its pages; `whole`: with the histograms, bucket by bucket. Never raises."""
    values: dict[str, float] = {}
    missing: Reason | None = None
    for number, page in enumerate(pages):
        try:
            answer = fetch(transport, page.target, page.path, page.headers, timeout_s=_SCRAPE_S)
        except TargetError:
            missing = "failed"
            continue
        states = read_page(answer.body) if answer.status == 200 else {}
        if not states:
            missing = _STATUS.get(answer.status, "absent" if answer.status == 200 else "failed")
        for model, state in states.items():
            values |= flatten(state, f"engine={state.engine},target={number}", model, whole=whole)
    return Scraped(values, missing if not values else None)


def flatten(state: EngineState, labels: str, model: str, *, whole: bool) -> dict[str, float]:
    """A state as values by series key; what it does not say is not there."""
    values: dict[str, float] = {}
    for name in EngineState.__struct_fields__:
        found = getattr(state, name)
        if isinstance(found, Histogram):
            values[f"{name}_count{{{labels},model={model}}}"] = found.count
            values[f"{name}_sum{{{labels},model={model}}}"] = found.sum
            if whole:
                for bound, count in zip(found.bounds, found.cumulative, strict=True):
                    values[f"{name}_bucket{{{labels},le={bound:g},model={model}}}"] = count
        elif isinstance(found, float | int):
            values[f"{name}{{{labels},model={model}}}"] = float(found)
    return values


class Kept:
    """A collector whose every round goes to the file as it ends; what was not to be had is told once, then counted."""

    def __init__(self, inner: Collector, file: TelemetryFile, now_ns: Callable[[], int]) -> None:
        self.name = inner.name
        self.missed: Counter[tuple[str, str, str]] = Counter()
        self._inner = inner
        self._file = file
        self._now_ns = now_ns

    def collect(self) -> Collected:
        found = self._inner.collect()
        values = {_key(reading.name, reading.labels): reading.value for reading in found.readings}
        if values:
            self._file.sample(self.name, values, self._now_ns)
        gaps = [(gap.name, gap.gpu, gap.reason) for gap in found.missing]
        fresh = [(*gap, 1) for gap in dict.fromkeys(gaps) if gap not in self.missed]
        self.missed.update(gaps)
        if fresh:
            self._file.missing(self.name, fresh, self._now_ns)
        return found

    def close(self) -> None:
        """End what it runs beside itself, if anything."""
        if isinstance(self._inner, KernelLog):
            self._inner.close()

    def sum_up(self) -> None:
        """Append how often each thing was missed."""
        if self.missed:
            self._file.missing(self.name, [(*gap, count) for gap, count in self.missed.items()], self._now_ns)


class EnginePage:
    """The engine's gauges and counters as a collector's rounds, over a transport of its own."""

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
        found = scrape(self._transport, self._pages, whole=False)
        if found.values:
            self._file.sample(self.name, found.values, self._now_ns)
        if found.missing is not None:
            gap = ("page", "", found.missing)
            if gap not in self.missed:
                self._file.missing(self.name, [(*gap, 1)], self._now_ns)
            self.missed[gap] += 1
        return Collected([], [])

    def sum_up(self) -> None:
        """Append how often there was none."""
        if self.missed:
            self._file.missing(self.name, [(*gap, count) for gap, count in self.missed.items()], self._now_ns)


class MachineWatch:
    """What the runner asks: the engine's page at a point's edges, and all that has been seen until now.

    A context manager, within which the sampler runs, if there is one.

    transport         for pages at the edges, in real time, whatever the run's `clock` is
    make_collectors   called in the sampler's process, for collectors of this machine
    make_transport    for that process; None: virtual time, where nothing is sampled between the edges
    """

    def __init__(
        self,
        settings: Telemetry,
        folder: Path,
        transport: Transport,
        clock: Clock,
        pages: Sequence[Page],
        server_here: bool,
        make_collectors: Callable[[], Sequence[Collector]] = tuple,
        make_transport: Callable[[], contextlib.AbstractContextManager[Transport]] | None = None,
    ) -> None:
        self.told = ""
        self._settings = settings
        self._folder = folder
        self._transport = transport
        self._clock = clock
        self._pages = pages
        self._header = Header(interval_s=settings.interval_s, server_here=server_here)
        self._make_collectors = make_collectors
        self._make_transport = make_transport
        self._file = TelemetryFile(folder, self._header)
        self._reader = TelemetryReader(folder)
        self._seen = TelemetryLog(server_here, [], [])
        self._refused: set[Reason] = set()
        self._child: tuple[int, int] | None = None

    def __enter__(self) -> "MachineWatch":
        first = scrape(self._transport, self._pages, whole=False)
        if not first.values:
            self._pages = ()
            self._tell_missing(first.missing or "absent")
        engine = "engine metrics" if first.values else f"no engine metrics ({first.missing or 'absent'})"
        self.told = f"{engine}; " + (
            "nothing of the machine: time is virtual" if self._make_transport is None else self._start()
        )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._child is not None:
            _end(*self._child)
            self._child = None
        self._file.close()

    def edge(self, point: int) -> None:
        """Read the engine's counters now, before the point's first request or after its last answer."""
        found = scrape(self._transport, self._pages, whole=True)
        with contextlib.suppress(OSError):  # a full disk is the records' to tell
            if found.values:
                self._file.sample(EDGE, found.values, self._clock.now_ns, point)
        if found.missing is not None:
            self._tell_missing(found.missing)

    def _tell_missing(self, why: Reason) -> None:
        if why not in self._refused:
            self._refused.add(why)
            with contextlib.suppress(OSError):
                self._file.missing(EDGE, [("page", "", why, 1)], self._clock.now_ns)

    def seen(self) -> TelemetryLog:
        """Everything until now."""
        fresh = self._reader.read()
        self._seen.samples.extend(fresh.samples)
        self._seen.missing.extend(fresh.missing)
        return self._seen

    def _start(self) -> str:
        """Fork the sampler; what it saw in its first round, in words."""
        assert self._make_transport is not None
        (alive, mine), (heard, theirs) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            # numpy's idle threads make Python warn; none of them holds a lock that the sampler takes.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(mine)
            os.close(heard)
            self._be_sampler(alive, theirs)
        os.close(alive)
        os.close(theirs)
        self._child = (child, mine)
        try:
            ready, _, _ = select.select([heard], [], [], _FIRST_ROUND_S + 1)
            said = os.read(heard, 4096) if ready else b""
        finally:
            os.close(heard)
        return _describe(said)

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
        assert self._make_transport is not None
        file = TelemetryFile(self._folder, self._header)
        parent, now_ns = os.getppid(), self._clock.now_ns
        with self._make_transport() as transport:
            kept = [Kept(collector, file, now_ns) for collector in self._make_collectors()]
            rounds: list[Kept | EnginePage] = [
                *kept,
                *([EnginePage(transport, self._pages, file, now_ns)] if self._pages else []),
            ]
            sampler = Sampler(rounds, self._settings.interval_s)
            sampler.start()
            sampler.wait(1, _FIRST_ROUND_S)
            counts = {state.collector: len(state.readings) for state in sampler.states() if state.collector != "engine"}
            os.write(theirs, json.dumps(counts).encode())
            os.close(theirs)
            while os.getppid() == parent and not select.select([alive], [], [], 1.0)[0]:
                pass
            sampler.stop()
            for one in rounds:
                one.sum_up()
            for one in kept:
                one.close()


def find_pages(settings: Telemetry, targets: Sequence[Target], headers: Headers) -> list[Page]:
    """Where the engine's metrics are: below each base URL, or where the settings say.

    A page of another host than the run's gets no key of the run's. TargetError: nothing answers where they say.
    """
    if settings.metrics_url is None:
        return [Page(target, "/metrics", headers) for target in targets]
    found = resolve(settings.metrics_url)
    known = any(target.origin.host == found.origin.host for target in targets)
    return [Page(found, "" if found.prefix else "/metrics", headers if known else ())]


def find_collectors(root: Path, *, embedded: bool) -> list[Collector]:
    """Those for the machine below `root`. `embedded`: the cards of this machine serve nobody and are left alone."""
    here = root == Path("/")
    cards = find_cards(root)
    found: list[Collector] = [HostCollector(root), KernelLog(find_log(root), [card.gpu for card in cards])]
    if embedded and here:
        return found
    # The tools take a second and wake cards that sleep: only where the files are out of sight, as in a container.
    tool = None if cards or not here else rocm_smi.collector() or amd_smi.collector()
    found.append(tool or AmdgpuCollector(root))
    if any((card.device / "pcie_bw").exists() for card in cards):
        found.append(PcieBandwidth(root))
    if here:
        found.append(NvmlCollector())
    return found


def _key(name: str, labels: Sequence[tuple[str, str]]) -> str:
    told = ",".join(f"{label}={value}" for label, value in labels if value)
    return f"{name}{{{told}}}" if told else name


def _describe(said: bytes) -> str:
    """What the first round of each collector brought."""
    try:
        counts = json.loads(said)
    except ValueError:
        return "the sampler did not start"
    seen = [f"{name} ({count} series)" for name, count in counts.items() if count]
    return ", ".join(seen) if seen else "nothing of the machine"


def _let_go(kept: set[int]) -> None:
    """Close what the parent had open, so that nobody who waits for it to be closed waits for the sampler.

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


def _end(child: int, mine: int) -> None:
    """Tell it to stop and wait for its last words; one that is stuck in the kernel is left to it."""
    os.close(mine)
    for patience_s in (_LAST_WORDS_S, 1.0):
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            try:
                if os.waitpid(child, os.WNOHANG)[0]:
                    return
            except ChildProcessError:  # somebody else has waited for it
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
