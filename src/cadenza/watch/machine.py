"""Watching the machine while a sweep runs: the engine's page at the edges of points, and samples in between.

In real time `realtime`'s process samples, in virtual time `virtual`'s hook. What cannot be read is reported, and the
sweep continues.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from cadenza.clock import Clock
from cadenza.errors import TargetError, UsageError
from cadenza.load.fetch import Headers, Page, fetch
from cadenza.load.target import Target, resolve
from cadenza.load.transport import Transport
from cadenza.readings import Labels, Reading, ReadingTable, Reason
from cadenza.spec import Telemetry
from cadenza.store.telemetry import Header, TelemetryFile, TelemetryReader
from cadenza.telemetry.engine_page import read_page
from cadenza.telemetry.engine_state import EngineState, Histogram

EDGE = "edge"
_SCRAPE_S = 5.0
_STATUS: dict[int, Reason] = {401: "denied", 403: "denied", 404: "absent", 405: "absent", 501: "not_supported"}


class Scraped(NamedTuple):
    """The readings of the engine's pages, and why there are none."""

    readings: list[Reading]
    missing: Reason | None


def scrape(transport: Transport, pages: Sequence[Page], *, whole: bool) -> Scraped:
    """The engine's state from all its pages; `whole`: with the histograms' buckets. Never raises."""
    readings: list[Reading] = []
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
            readings += read_state(state, number, model, whole=whole)
    return Scraped(readings, missing if not readings else None)


def read_state(state: EngineState, target: int, model: str, *, whole: bool) -> list[Reading]:
    """A state as readings of the base URL with that number; a field that is None has none. `whole`: with buckets."""
    labels = engine_labels(state.engine, target, model)
    readings: list[Reading] = []
    for name in EngineState.__struct_fields__:
        value = getattr(state, name)
        if isinstance(value, Histogram):
            readings.append(Reading(f"{name}_count", labels, value.count))
            readings.append(Reading(f"{name}_sum", labels, value.sum))
            if whole:
                readings += [
                    Reading(f"{name}_bucket", (*labels, ("le", f"{bound:g}")), count)
                    for bound, count in zip(value.bounds, value.cumulative, strict=True)
                ]
        elif isinstance(value, float | int):
            readings.append(Reading(name, labels, float(value)))
    return readings


def engine_labels(engine: str, target: int, model: str) -> Labels:
    """Whose page, of which base URL (from 0), of which model."""
    return ("engine", engine), ("target", str(target)), ("model", model)


class Sampling(Protocol):
    """Samples between the edges of points: a process (`realtime`), or in virtual time (`virtual`)."""

    def start(self) -> str:
        """Begin sampling; what is sampled, in words."""
        ...

    def poll(self, now_ns: int) -> None:
        """Take a sample: a point begins or ends."""
        ...

    def end(self) -> None:
        """Stop sampling."""
        ...


class MachineWatch:
    """The engine's page at a point's edges, and all readings until now.

    description   what is sampled, in words

    A context manager, within which the sampling goes on.

    transport       for pages at the edges, in real time, whatever the run's `clock` is
    make_sampling   from the file and from the pages that answer
    """

    def __init__(
        self,
        folder: Path,
        header: Header,
        transport: Transport,
        clock: Clock,
        pages: Sequence[Page],
        make_sampling: Callable[[TelemetryFile, Sequence[Page]], Sampling],
    ) -> None:
        """OSError: the file cannot be written."""
        self.description = ""
        self._transport = transport
        self._clock = clock
        self._pages = pages
        self._make_sampling = make_sampling
        self._file = TelemetryFile(folder, header)
        self._reader = TelemetryReader(folder)
        self._seen = ReadingTable(header.server_here, [], [], header.interval_s)
        self._refused: set[Reason] = set()
        self._sampling: Sampling | None = None

    def __enter__(self) -> "MachineWatch":
        """UsageError: two collectors have the same series."""
        first = scrape(self._transport, self._pages, whole=False)
        if not first.readings:
            self._pages = ()
            self._write_missing(first.missing or "absent")
        engine = "engine metrics" if first.readings else f"no engine metrics ({first.missing or 'absent'})"
        self._sampling = self._make_sampling(self._file, self._pages)
        try:
            self.description = f"{engine}; {self._sampling.start()}"
        except UsageError:
            self._file.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._sampling is not None:
            self._sampling.end()
            self._sampling = None
        self._file.close()

    def edge(self, point: int) -> None:
        """Read the engine's counters now, before the point's first request or after its last answer."""
        if self._sampling is not None:
            self._sampling.poll(self._clock.now_ns())
        page = scrape(self._transport, self._pages, whole=True)
        with contextlib.suppress(OSError):  # a full disk is reported where records are written
            if page.readings:
                self._file.sample(EDGE, page.readings, self._clock.now_ns, point)
        if page.missing is not None:
            self._write_missing(page.missing)

    def _write_missing(self, why: Reason) -> None:
        if why not in self._refused:
            self._refused.add(why)
            with contextlib.suppress(OSError):
                self._file.missing(EDGE, [("page", "", why, 1)], self._clock.now_ns)

    def seen(self) -> ReadingTable:
        """Everything until now."""
        fresh = self._reader.read()
        self._seen.samples.extend(fresh.samples)
        self._seen.missing.extend(fresh.missing)
        return self._seen


def find_pages(settings: Telemetry, targets: Sequence[Target], headers: Headers) -> list[Page]:
    """Where the engine's metrics are: below each base URL, or the URL of the settings.

    A page of another host than the run's gets no key of the run's. TargetError: that URL does not answer.
    """
    if settings.metrics_url is None:
        return [Page(target, "/metrics", headers) for target in targets]
    elsewhere = resolve(settings.metrics_url)
    known = any(target.origin.host == elsewhere.origin.host for target in targets)
    return [Page(elsewhere, "" if elsewhere.prefix else "/metrics", headers if known else ())]
