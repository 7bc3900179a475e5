"""`telemetry.jsonl`: readings of the machine and the engine on the run's clock, appended while the run goes on.

Line 1 is the schema and what holds for the whole file. A sample's line has the time, the source and its values; the
series that the values belong to are in the source's first line, and again where they change. `missing` lists values
that could not be read: card, reason and count, at the first occurrence and once more at the end.

Schema 2 has a series as an object: `{"name": "gpu_busy_ratio", "labels": {"gpu": "0000:43:00.0", "vendor": "amd"}}`.
Schema 1 had it as text, `amdgpu_busy_ratio{gpu=0000:43:00.0}`, in files whose line 1 has the run's schema, 1 or 2. So
each series is read by its form. This module is the only one that parses the text.
"""

import contextlib
import fcntl
import math
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from cadenza.readings import DEFAULT_INTERVAL_S, Missed, Reading, ReadingTable, Sample, Series

TELEMETRY = "telemetry.jsonl"
# Of this file; the run's records have a separate one.
SCHEMA = 2
_VENDORS = {"amdgpu": "amd", "nvidia": "nvidia"}
_LOCK_TRIES, _LOCK_WAIT_S = 100, 0.01


class Header(msgspec.Struct, kw_only=True):
    """Line 1.

    interval_s    planned time between two samples of one source, on the run's clock
    server_here   cards and host are those of the machine that serves, as far as is known
    simulated     engine and cards are the embedded engine's
    """

    schema: int = SCHEMA
    kind: str = "cadenza-telemetry"
    interval_s: float = DEFAULT_INTERVAL_S
    server_here: bool = False
    simulated: bool = False


class _SeriesObject(msgspec.Struct, omit_defaults=True):
    name: str
    labels: dict[str, str] = {}


class _Line(msgspec.Struct, omit_defaults=True):
    at_ns: int
    source: str
    point: int | None = None
    series: list[str | _SeriesObject] | None = None
    values: list[float] | None = None
    missing: list[tuple[str, str, str, int]] | None = None


class TelemetryFile:
    """The file, appended by one process; several may have it open. A source belongs to one of them.

    A line's stamp is taken under the file's lock, so that the holder of the lock can read everything older.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        """Raises OSError where it cannot be written."""
        self._encoder = msgspec.json.Encoder()
        self._written: dict[str, tuple[Series, ...]] = {}
        self._turn = threading.Lock()  # the file's lock is the process's, not the thread's
        self.fd = os.open(folder / TELEMETRY, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self.fd).st_size == 0:
            self._write(self._encoder.encode(header))

    def close(self) -> None:
        os.close(self.fd)

    def sample(
        self, source: str, readings: Iterable[Reading], now_ns: Callable[[], int], point: int | None = None
    ) -> None:
        """Append the readings of `source`, those with finite values; of a series that occurs twice the last counts.

        OSError: the disk is full or fails.
        """
        kept = {one.series: one.value for one in readings if math.isfinite(one.value)}
        series = tuple(kept)
        with self._turn, locked(self.fd):
            line = _Line(now_ns(), source, point, None, [_short(value) for value in kept.values()])
            if series != self._written.get(source):
                line.series = [_SeriesObject(one.name, dict(one.labels)) for one in series]
            self._write(self._encoder.encode(line))
            self._written[source] = series

    def missing(self, source: str, counts: Iterable[tuple[str, str, str, int]], now_ns: Callable[[], int]) -> None:
        """Append (name, card, reason, count until now) of values that `source` could not read."""
        with self._turn, locked(self.fd):
            self._write(self._encoder.encode(_Line(now_ns(), source, missing=list(counts))))

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
    """Decodes the file's lines, all but the header, in order: the series of a source are in its first line."""

    def __init__(self) -> None:
        self._series: dict[str, tuple[Series, ...]] = {}
        self._decoder = msgspec.json.Decoder(_Line)

    def decode(self, line: bytes) -> tuple[list[Sample], list[Missed]]:
        """The line's sample, one at most, and what is missing; nothing where it is malformed or does not fit."""
        try:
            parsed = self._decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError):
            return [], []
        if parsed.series is not None:
            self._series[parsed.source] = tuple(_series(one) for one in parsed.series)
        series = self._series.get(parsed.source, ())
        samples = []
        if parsed.values is not None and len(parsed.values) == len(series):
            samples = [Sample(parsed.at_ns, parsed.source, parsed.point, series, array("d", parsed.values))]
        missing = [
            Missed(parsed.at_ns, parsed.source, _card_family(name)[0], gpu, reason)
            for name, gpu, reason, _ in parsed.missing or ()
        ]
        return samples, missing


def _series(written: str | _SeriesObject) -> Series:
    if isinstance(written, str):
        return parse_key(written)
    return Series(written.name, tuple(written.labels.items()))


@lru_cache(maxsize=4096)
def parse_key(key: str) -> Series:
    """The series of schema 1's `name{label=value,…}`; `model`, whose value may hold any characters, comes last.

    `amdgpu_x` and `nvidia_x` are `gpu_x` with the label vendor, amd or nvidia.
    """
    family, brace, rest = key.partition("{")
    text, separator, model = rest.removesuffix("}").partition("model=") if brace else ("", "", "")
    labels = {label: value for label, _, value in (pair.partition("=") for pair in text.split(",") if pair)}
    name, vendor = _card_family(family)
    card = {"gpu": labels.pop("gpu")} if vendor and "gpu" in labels else {}
    return Series(name, tuple((card | vendor | labels | ({"model": model} if separator else {})).items()))


def _card_family(name: str) -> tuple[str, dict[str, str]]:
    """The present name of a family of schema 1, and the label that replaces the vendor in it."""
    vendor, separator, rest = name.partition("_")
    if not separator or vendor not in _VENDORS:
        return name, {}
    return f"gpu_{rest}", {"vendor": _VENDORS[vendor]}


class TelemetryReader:
    """The file, read as it grows: `read` returns what has been added since. A line that was cut off is left out."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TELEMETRY
        self._at = 0
        self._header = Header()
        self._lines = Lines()

    def read(self) -> ReadingTable:
        """What is new; empty where there is no file."""
        table = ReadingTable(self._header.server_here, [], [], self._header.interval_s)
        for line in self._new_lines():
            samples, missing = self._lines.decode(line)
            table.samples.extend(samples)
            table.missing.extend(missing)
        return table._replace(server_here=self._header.server_here, interval_s=self._header.interval_s)

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


def read_telemetry(folder: Path) -> ReadingTable | None:
    """All of a run's; None: it has none."""
    return TelemetryReader(folder).read() if (folder / TELEMETRY).exists() else None


@contextlib.contextmanager
def locked(fd: int, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the file's lock; continue without it after a second, since its holder may have been stopped."""
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
