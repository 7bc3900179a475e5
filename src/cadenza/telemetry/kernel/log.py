"""The kernel log from now on: what befell the GPUs, as counters and as events."""

import contextlib
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from cadenza.readings import Collected, Collector, Missing, Reading
from cadenza.record import printable
from cadenza.telemetry.kernel.lines import KernelLine
from cadenza.telemetry.kernel.patterns import KINDS, Kind, match
from cadenza.telemetry.kernel.sources import Source
from cadenza.telemetry.root import UnreadableError

_EVENTS_TOTAL = "cadenza_kernel_events_total"
_LOST_TOTAL = "cadenza_kernel_log_lost_total"
_EVENTS_KEPT = 1000
_SERIES = 2000


class KernelEvent(NamedTuple):
    """A fault of a GPU ("": the line names none). `text` is one printable line."""

    kind: Kind
    gpu: str
    boot_us: int | None
    text: str


class KernelLog(Collector):
    """A collector over one source: counters by event and GPU, and each event itself.

    Cards in `gpus` (PCI addresses) have counters from the beginning, at 0, so that a rate sees their first event.
    """

    name = "kernel"

    def __init__(self, source: Source, gpus: Sequence[str] = ()) -> None:
        self._source = source
        self._counts: Counter[tuple[str, str]] = Counter({(kind, gpu): 0 for gpu in ("", *gpus) for kind in KINDS})
        self._events: deque[KernelEvent] = deque(maxlen=_EVENTS_KEPT)
        self._readable = False

    def collect(self) -> Collected:
        """Counters since the beginning; none, and the reason, where the log was never readable."""
        missing: list[Missing] = []
        try:
            for line in self._source.read():
                self._take(line)
            self._readable = True
        except UnreadableError as error:
            missing.append(Missing(_EVENTS_TOTAL, "", error.reason))
        if not self._readable:
            return Collected([], missing)
        readings = [
            Reading(_EVENTS_TOTAL, (("event", kind), ("gpu", gpu)), float(count))
            for (kind, gpu), count in self._counts.items()
        ]
        if self._source.lost is not None:
            readings.append(Reading(_LOST_TOTAL, (), float(self._source.lost)))
        return Collected(readings, missing)

    def events(self) -> list[KernelEvent]:
        """Events since the last call, oldest first; of a flood the last 1000."""
        events: list[KernelEvent] = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(self._events.popleft())
        return events

    def close(self) -> None:
        self._source.close()

    def _take(self, line: KernelLine) -> None:
        event = match(line.text)
        if event is None:
            return
        gpu = event.gpu or line.device
        key = (event.kind, gpu)
        self._counts[key if key in self._counts or len(self._counts) < _SERIES else (event.kind, "")] += 1
        self._events.append(KernelEvent(event.kind, gpu, line.boot_us, printable(line.text)))
