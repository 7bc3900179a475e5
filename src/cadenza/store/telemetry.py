"""`telemetry.jsonl`: what was seen of the machine, on the run's clock; appended by whoever watches, read as rows.

Line 1 is the schema and what holds for the whole file. A sample's line has the instant, the source and its values; the
keys that the values belong to stand in the source's first line, and again where they change. What was not to be had
stands in `missing`: card, reason and how often, when it is first met and once more at the end.
"""

import contextlib
import fcntl
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from cadenza.record import SCHEMA

TELEMETRY = "telemetry.jsonl"
INTERVAL_S = 0.5
_LOCK_TRIES, _LOCK_WAIT_S = 100, 0.01


class Header(msgspec.Struct, kw_only=True):
    """Line 1.

    interval_s    between two looks, on the run's clock
    server_here   the cards and the host that were watched are the server's own, as far as can be told
    simulated     it is the embedded engine that was watched, and its simulated board where there are cards
    """

    schema: int = SCHEMA
    kind: str = "cadenza-telemetry"
    interval_s: float = INTERVAL_S
    server_here: bool = False
    simulated: bool = False


class _Line(msgspec.Struct, omit_defaults=True):
    at_ns: int
    source: str
    point: int | None = None
    series: list[str] | None = None
    values: list[float] | None = None
    missing: list[tuple[str, str, str, int]] | None = None


class Sample(NamedTuple):
    """What `source` told at `at_ns`: `values[i]` of series `series[i]`. `point`: taken at an edge of that point."""

    at_ns: int
    source: str
    point: int | None
    series: tuple[str, ...]
    values: NDArray[np.float64]


class Missed(NamedTuple):
    """From `at_ns` on something could not be read: of what source, the series, the card (or ""), and why."""

    at_ns: int
    source: str
    name: str
    gpu: str
    reason: str


class TelemetryLog(NamedTuple):
    """Samples and gaps, in the order in which they were written; `interval_s` between two looks, as line 1 has it."""

    server_here: bool
    samples: list[Sample]
    missing: list[Missed]
    interval_s: float = INTERVAL_S


class TelemetryFile:
    """The file, appended by one process; several may have it open. A source belongs to one of them.

    A line's stamp is taken under the file's lock, so that whoever holds the lock has seen everything older.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        """Raises OSError where it cannot be written."""
        self._encoder = msgspec.json.Encoder()
        self._told: dict[str, tuple[str, ...]] = {}
        self._turn = threading.Lock()  # the file's lock is the process's, not the thread's
        self.fd = os.open(folder / TELEMETRY, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self.fd).st_size == 0:
            self._write(self._encoder.encode(header))

    def close(self) -> None:
        os.close(self.fd)

    def sample(
        self, source: str, values: Mapping[str, float], now_ns: Callable[[], int], point: int | None = None
    ) -> None:
        """Append what `source` tells now. What is not finite is not there. OSError where the disk does not take it."""
        kept = {name: value for name, value in values.items() if math.isfinite(value)}
        series = tuple(kept)
        with self._turn, locked(self.fd):
            line = _Line(now_ns(), source, point, None, [_short(value) for value in kept.values()])
            if series != self._told.get(source):
                line.series = list(series)
            self._write(self._encoder.encode(line))
            self._told[source] = series

    def missing(self, source: str, found: Iterable[tuple[str, str, str, int]], now_ns: Callable[[], int]) -> None:
        """Append (series, card, reason, how often until now) of what `source` could not read."""
        with self._turn, locked(self.fd):
            self._write(self._encoder.encode(_Line(now_ns(), source, missing=list(found))))

    def mend(self) -> None:
        """End the line that a writer left when it was killed, lest the next one be lost with it."""
        with self._turn, locked(self.fd):
            size = os.fstat(self.fd).st_size
            if size and os.pread(self.fd, 1, size - 1) != b"\n":
                os.write(self.fd, b"\n")

    def _write(self, line: bytes) -> None:
        whole = data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except OSError:
            # The part that fitted on the disk goes, lest the next line be lost with it.
            os.ftruncate(self.fd, os.fstat(self.fd).st_size - (len(whole) - len(data)))
            raise


class Lines:
    """Decodes the file's lines, all but the header, in order: the series of a source stand where they first appear."""

    def __init__(self) -> None:
        self._series: dict[str, tuple[str, ...]] = {}
        self._line = msgspec.json.Decoder(_Line)

    def decode(self, line: bytes) -> tuple[list[Sample], list[Missed]]:
        """What the line holds, one sample at most; nothing where it is none of ours, or does not fit its series."""
        try:
            found = self._line.decode(line)
        except (msgspec.MsgspecError, UnicodeError):
            return [], []
        if found.series is not None:
            self._series[found.source] = tuple(found.series)
        series = self._series.get(found.source, ())
        fits = found.values is not None and len(found.values) == len(series)
        samples = [Sample(found.at_ns, found.source, found.point, series, np.array(found.values))] if fits else []
        return samples, [Missed(found.at_ns, found.source, *gap[:3]) for gap in found.missing or ()]


class TelemetryReader:
    """The file, read as it grows: `read` gives what has been added since. A line that was cut off is left out."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TELEMETRY
        self._at = 0
        self._header = Header()
        self._lines = Lines()

    def read(self) -> TelemetryLog:
        """New samples, and all that is missing among them; empty where there is no file."""
        samples: list[Sample] = []
        missing: list[Missed] = []
        for line in self._new_lines():
            told, gaps = self._lines.decode(line)
            samples += told
            missing += gaps
        return TelemetryLog(self._header.server_here, samples, missing, self._header.interval_s)

    def _new_lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file, locked(file.fileno(), fcntl.LOCK_SH):
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        if self._at == 0 and lines:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
                self._header = msgspec.json.decode(lines[0], type=Header)
            lines = lines[1:]
        self._at += len(whole)
        return lines


def read_telemetry(folder: Path) -> TelemetryLog | None:
    """All of a run's; None: it has none."""
    return TelemetryReader(folder).read() if (folder / TELEMETRY).exists() else None


@contextlib.contextmanager
def locked(fd: int, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the file's lock; go on without it after a second, since whoever holds it may have been stopped."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(_LOCK_WAIT_S)
        except OSError:  # a file system without locks
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def _short(value: float) -> float:
    """A whole number without its `.0`."""
    return int(value) if value == int(value) else value
