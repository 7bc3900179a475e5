"""The kernel log from now on: what befell the GPUs, as counters and as events.

Three sources: /dev/kmsg (https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg), which may need CAP_SYSLOG;
the journal, for those who may read that instead; and a file as dmesg writes it, such as the simulated board's
kernel.log. Only what the kernel itself says counts: whatever user space writes into its log is passed over.
"""

import contextlib
import os
import re
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from cadenza.record import printable
from cadenza.telemetry.kernel_patterns import KINDS, Kind, match
from cadenza.telemetry.reading import Collected, Missing, Reading, Reason
from cadenza.telemetry.root import UnreadableError

_EVENTS_TOTAL = "cadenza_kernel_events_total"
_LOST_TOTAL = "cadenza_kernel_log_lost_total"
# A kernel record has 8 KiB at most. One round takes no more than this; what is left waits for the next.
_RECORD_BYTES = 16 << 10
_RECORDS = 4096
_ROUND_BYTES = 1 << 20
_LINE_BYTES = 64 << 10
_EVENTS_KEPT = 1000
_SERIES = 2000
_STOP_S = 2.0

_PCI_DEVICE = re.compile(r"\+pci:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)


class Line(NamedTuple):
    """A message of the kernel: microseconds since boot (None: not told), the PCI device that it is about ("": none)."""

    boot_us: int | None
    device: str
    text: str


class KernelEvent(NamedTuple):
    """What befell a GPU ("": the line does not say which). `text` is one printable line."""

    kind: Kind
    gpu: str
    boot_us: int | None
    text: str


class Source(Protocol):
    """Where lines come from. `lost`: records that were overwritten before they were read; None: it cannot tell."""

    lost: int | None

    def read(self) -> list[Line]:
        """What came since the last call, without waiting. UnreadableError: nothing can come, and why."""
        ...

    def close(self) -> None: ...


class Kmsg:
    """/dev/kmsg below `root`, opened at the first read, from its end on."""

    lost: int | None

    def __init__(self, root: Path, read: Callable[[int, int], bytes] = os.read) -> None:
        self.lost = 0
        self._path = root / "dev" / "kmsg"
        self._read = read
        self._file = -1
        self._next: int | None = None  # the sequence number that comes next
        self._overrun = False

    def read(self) -> list[Line]:
        lines: list[Line] = []
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._file, 0, os.SEEK_END)
            for _ in range(_RECORDS):
                try:
                    record = self._read(self._file, _RECORD_BYTES)
                except BrokenPipeError:  # EPIPE: the log went round; the next record is the oldest that is left
                    self._overrun = True
                    continue
                if not record:
                    break
                self._count(record)
                lines += parse_kmsg(record)
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            raise UnreadableError(_why(error)) from None
        return lines

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _count(self, record: bytes) -> None:
        head = record.split(b";", 1)[0].split(b",")
        if len(head) < 3 or not head[1].isdigit() or len(head[1]) > 20:
            return
        number = int(head[1])
        if self._overrun:
            self._overrun = False
            self.lost = (self.lost or 0) + max(1, number - self._next if self._next is not None else 1)
        self._next = number + 1


def parse_kmsg(record: bytes) -> list[Line]:
    """The kernel's lines of what one read of /dev/kmsg gave: `priority,sequence,microseconds,flags;text`, where text
    is escaped (\\x0a), and ` KEY=value` lines. Records of user space (facility above 0) and malformed ones give none.
    """
    lines: list[Line] = []
    ours = False
    for raw in record.split(b"\n"):
        if raw.startswith(b" "):
            device = _PCI_DEVICE.fullmatch(raw[8:].decode("ascii", errors="replace"))
            if ours and device and raw.startswith(b" DEVICE="):
                lines[-1] = lines[-1]._replace(device=device[1])
            continue
        head, _, text = raw.partition(b";")
        numbers = head.split(b",")[:3]
        ours = len(numbers) == 3 and all(number.isdigit() and len(number) < 20 for number in numbers)
        ours = ours and int(numbers[0]) < 8  # facility · 8 + level; 0 is the kernel, which nobody else can write
        if ours:
            plain = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text)
            lines.append(Line(int(numbers[2]), "", plain.decode("utf-8", errors="replace")))
    return lines


# "[  812.101001] text", with the level that `dmesg -x` or `-r` puts in front, and the caller that some kernels add.
_DMESG = re.compile(
    r"(?:<(?P<priority>[0-9]{1,3})>|(?P<facility>[a-z0-9]+) *:[a-z]+ *: )?"
    r"\[ *(?P<s>[0-9]{1,12})\.(?P<us>[0-9]{6})\](?:\[ *[TC][0-9]+\])? (?P<text>.*)",
    re.ASCII | re.DOTALL,
)


def parse_dmesg(line: str) -> Line | None:
    """A line as dmesg prints it; None where it has no time stamp, or is not the kernel's by what stands before it."""
    found = _DMESG.fullmatch(line)
    if found is None or int(found["priority"] or 0) > 7 or found["facility"] not in (None, "kern"):
        return None
    return Line(int(found["s"]) * 1_000_000 + int(found["us"]), "", found["text"])


class LogFile:
    """A file in dmesg's form that grows. From its end on; one that comes later, or is begun anew, from its beginning.

    It is as trustworthy as whoever writes it.
    """

    lost: int | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._tail = _Tail()
        with contextlib.suppress(OSError):
            self._open()
            os.lseek(self._file, 0, os.SEEK_END)

    def read(self) -> list[Line]:
        lines: list[Line] = []
        try:
            if self._file < 0:
                self._open()
            lines += self._rest()
            now, ours = self._path.stat(), os.fstat(self._file)
            if (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino):
                self.close()
                self._open()
                lines += self._rest()
        except OSError as error:
            if not lines:
                raise UnreadableError(_why(error)) from None
        return lines

    def close(self) -> None:
        self._tail = _Tail()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _rest(self) -> Iterator[Line]:
        if os.fstat(self._file).st_size < os.lseek(self._file, 0, os.SEEK_CUR):
            self._tail = _Tail()
            os.lseek(self._file, 0, os.SEEK_SET)
        for raw in self._tail.feed(os.read(self._file, _ROUND_BYTES)):
            line = parse_dmesg(raw.decode("utf-8", errors="replace"))
            if line is not None:
                yield line


_JOURNALCTL = ("journalctl", "-k", "-f", "-n", "0", "-o", "json", "--no-pager")


class Journal:
    """`journalctl` following the kernel's messages, in a child process that `close` ends; started at the first read."""

    lost: int | None = None

    def __init__(self, command: Sequence[str] = _JOURNALCTL) -> None:
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._tail = _Tail()

    def read(self) -> list[Line]:
        try:
            if self._child is None:
                self._start()
            data = os.read(self._output, _ROUND_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise UnreadableError(_why(error)) from None
        if not data:  # it has ended: no journal, or none that we may read
            raise UnreadableError("failed")
        found = (parse_journal(raw) for raw in self._tail.feed(data))
        return [line for line in found if line is not None]

    def close(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()

    def _start(self) -> None:
        null = subprocess.DEVNULL
        self._child = subprocess.Popen(self._command, stdin=null, stdout=subprocess.PIPE, stderr=null)
        assert self._child.stdout is not None
        self._output = self._child.stdout.fileno()
        os.set_blocking(self._output, False)


def parse_journal(line: bytes) -> Line | None:
    """A line of `journalctl -o json`, if the kernel said it (transport kernel, facility 0).

    MESSAGE is a string, or an array of bytes where it is no UTF-8; times and numbers are strings.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        text = _field(fields, "MESSAGE")
        if text is None or _field(fields, "_TRANSPORT") != "kernel" or _field(fields, "SYSLOG_FACILITY") not in _KERN:
            return None
        device = _PCI_DEVICE.fullmatch(_field(fields, "_KERNEL_DEVICE") or "")
        stamp = _field(fields, "_SOURCE_MONOTONIC_TIMESTAMP") or _field(fields, "__MONOTONIC_TIMESTAMP") or ""
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return None
    known = stamp.isascii() and stamp.isdigit() and len(stamp) < 20
    return Line(int(stamp) if known else None, device[1] if device else "", text)


_KERN = (None, "0")


def _field(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    if name not in fields:
        return None
    value = msgspec.json.decode(fields[name], type=str | list[int] | None)
    return bytes(value).decode("utf-8", errors="replace") if isinstance(value, list) else value


class _Tail:
    """Whole lines out of pieces; one that is too long is passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = False

    def feed(self, data: bytes) -> list[bytes]:
        *lines, rest = (self._rest + data).split(b"\n")
        if lines and self._skip:
            del lines[0]
            self._skip = False
        self._skip = self._skip or len(rest) > _LINE_BYTES
        self._rest = b"" if self._skip else rest
        return [line for line in lines if len(line) <= _LINE_BYTES]


def _why(error: OSError) -> Reason:
    if isinstance(error, PermissionError):
        return "denied"
    return "absent" if isinstance(error, FileNotFoundError | NotADirectoryError) else "failed"


def find_log(root: Path) -> Source:
    """What there is below `root`: a simulated board's kernel.log, else /dev/kmsg, else this machine's journal.

    The journal is asked only where `root` is this machine's own and /dev/kmsg may not be read.
    """
    if (root / "SIMULATED").is_file():
        return LogFile(root / "kernel.log")
    kmsg = Kmsg(root)
    try:
        kmsg.read()
    except UnreadableError as error:
        if error.reason == "denied" and root.resolve() == Path("/"):
            return Journal()
    return kmsg


class KernelLog:
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

    def _take(self, line: Line) -> None:
        event = match(line.text)
        if event is None:
            return
        gpu = event.gpu or line.device
        key = (event.kind, gpu)
        self._counts[key if key in self._counts or len(self._counts) < _SERIES else (event.kind, "")] += 1
        self._events.append(KernelEvent(event.kind, gpu, line.boot_us, printable(line.text)))
